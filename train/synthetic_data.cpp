#include <greyhound/core/error.h>
#include <greyhound/core/rng.h>
#include <greyhound/train/synthetic_data.h>

#include <algorithm>

namespace greyhound {

SyntheticData::SyntheticData(std::int64_t vocab_size, std::int64_t rows_per_step, std::uint64_t seed)
    : vocab_size_(vocab_size), rows_per_step_(rows_per_step), seed_(seed) {}

void SyntheticData::draw(std::uint64_t key, std::int64_t row, std::span<std::int32_t> window) const {
  const Philox philox{key};
  for (std::size_t i = 0; i < window.size(); ++i) {
    const Philox::Block words = philox(i, static_cast<std::uint64_t>(row));
    const double u = words[0] * 0x1p-32;
    const auto id = static_cast<std::int64_t>(static_cast<double>(vocab_size_) * u * u * u);
    const bool repeat = i > 0 && (words[1] & 1u) != 0;
    window[i] = repeat ? window[i - 1] : static_cast<std::int32_t>(std::min(id, vocab_size_ - 1));
  }
}

void SyntheticData::training_row(std::int64_t step, std::int64_t row, std::span<std::int32_t> window) const {
  draw(mix_key(seed_, 1), step * rows_per_step_ + row, window);
}

void SyntheticData::sequential_row(std::int64_t row, std::span<std::int32_t> window) const {
  draw(mix_key(seed_, 2), row, window);
}

std::string SyntheticData::training_position(std::int64_t step, std::int64_t row, std::int64_t index) const {
  return concat("synthetic data, step ", step, ", row ", row, ", token ", index);
}

std::string SyntheticData::sequential_position(std::int64_t row, std::int64_t index) const {
  return concat("synthetic data, held-out row ", row, ", token ", index);
}

}  // namespace greyhound
