// A name for contents.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace greyhound {

// 128 bits in hexadecimal. Fast (gigabytes a second) and not cryptographic: it tells files of one user from each other.
std::string content_hash(std::string_view contents);

}  // namespace greyhound
