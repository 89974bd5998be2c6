#include <greyhound/train/window_order.h>

#include <algorithm>

namespace greyhound {

PartIndex::Place PartIndex::operator[](std::int64_t item) const {
  const auto end = std::upper_bound(ends_.begin(), ends_.end(), item);
  const std::int64_t begin = end == ends_.begin() ? 0 : *(end - 1);
  return {static_cast<std::size_t>(end - ends_.begin()), item - begin};
}

Permutation::Permutation(std::int64_t size, std::uint64_t key) : size_(static_cast<std::uint64_t>(size)), key_(key) {
  while (half_bits_ < 31 && (std::uint64_t{1} << (2 * half_bits_)) < size_) ++half_bits_;
}

std::int64_t Permutation::operator[](std::int64_t index) const {
  constexpr int rounds = 6;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t value = static_cast<std::uint64_t>(index);
  do {  // the network covers at most four times `size`, so this is few rounds on average
    std::uint64_t left = value >> half_bits_, right = value & mask;
    for (int round = 0; round < rounds; ++round) {
      const std::uint64_t mixed = mix_key(key_ + static_cast<std::uint64_t>(round), right) >> 32;
      const std::uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= size_);
  return static_cast<std::int64_t>(value);
}

}  // namespace greyhound
