#include <greyhound/train/content_hash.h>

#include <bit>
#include <cstdio>
#include <cstring>

namespace greyhound {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

}  // namespace

std::string content_hash(std::string_view contents) {
  // Four lanes, so that multiplications overlap; each step is a bijection of its lane.
  std::uint64_t lanes[4] = {0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5};
  const auto absorb = [&](const char* block) {
    std::uint64_t words[4];
    std::memcpy(words, block, sizeof words);
    for (int i = 0; i < 4; ++i) lanes[i] = std::rotl((lanes[i] ^ words[i]) * 0x9FB21C651E98DF25, 29);
  };
  std::size_t position = 0;
  for (; position + 32 <= contents.size(); position += 32) absorb(contents.data() + position);
  char rest[32] = {};
  std::memcpy(rest, contents.data() + position, contents.size() - position);
  absorb(rest);

  std::uint64_t low = contents.size(), high = ~contents.size();
  for (const std::uint64_t lane : lanes) {
    low = scramble(low ^ lane);
    high = scramble(high + lane);
  }
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(high),
                static_cast<unsigned long long>(low));
  return text;
}

}  // namespace greyhound
