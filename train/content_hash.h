// A name for contents.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace greyhound {

// 128 bits of what is added. Fast (gigabytes a second) and not cryptographic: it tells files of one user from each
// other, and damaged ones from whole ones.
class ContentHash {
 public:
  void add(std::string_view contents);
  std::array<std::uint64_t, 2> finish();  // ends the work of the object

 private:
  void absorb(const char* block);

  std::array<std::uint64_t, 4> lanes_ = {0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9,
                                         0x27D4EB2F165667C5};
  std::uint64_t bytes_ = 0;
  char rest_[32] = {};  // that make no block yet
};

std::string to_hexadecimal(const std::array<std::uint64_t, 2>& hash);

// Of the contents, in hexadecimal.
std::string content_hash(std::string_view contents);

}  // namespace greyhound
