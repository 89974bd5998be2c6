#include <greyhound/train/content_hash.h>

#include <algorithm>
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

void ContentHash::absorb(const char* block) {
  // Four lanes, so that multiplications overlap; each step is a bijection of its lane.
  std::uint64_t words[4];
  std::memcpy(words, block, sizeof words);
  for (std::size_t i = 0; i < 4; ++i) lanes_[i] = std::rotl((lanes_[i] ^ words[i]) * 0x9FB21C651E98DF25, 29);
}

void ContentHash::add(std::string_view contents) {
  if (contents.empty()) return;
  const std::size_t held = bytes_ % sizeof rest_;
  bytes_ += contents.size();
  if (held > 0) {
    const std::size_t part = std::min(sizeof rest_ - held, contents.size());
    std::memcpy(rest_ + held, contents.data(), part);
    contents.remove_prefix(part);
    if (held + part < sizeof rest_) return;
    absorb(rest_);
  }
  for (; contents.size() >= sizeof rest_; contents.remove_prefix(sizeof rest_)) absorb(contents.data());
  if (!contents.empty()) std::memcpy(rest_, contents.data(), contents.size());
}

std::array<std::uint64_t, 2> ContentHash::finish() {
  const std::size_t held = bytes_ % sizeof rest_;
  std::memset(rest_ + held, 0, sizeof rest_ - held);
  absorb(rest_);
  std::uint64_t low = bytes_, high = ~low;
  for (const std::uint64_t lane : lanes_) {
    low = scramble(low ^ lane);
    high = scramble(high + lane);
  }
  return {high, low};
}

std::string to_hexadecimal(const std::array<std::uint64_t, 2>& hash) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash[0]),
                static_cast<unsigned long long>(hash[1]));
  return text;
}

std::string content_hash(std::string_view contents) {
  ContentHash hash;
  hash.add(contents);
  return to_hexadecimal(hash.finish());
}

}  // namespace greyhound
