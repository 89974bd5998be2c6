// Made-up tokens without end, for trials and benchmarks without data.
#pragma once

#include <greyhound/train/data_source.h>

namespace greyhound {

// Every token is drawn by Philox from its row and position: half the time it repeats the one before, otherwise small
// ids are likelier than large ones. A model learns both quickly, so that a trial's loss falls as it does with text.
class SyntheticData final : public DataSource {
 public:
  SyntheticData(std::int64_t vocab_size, std::int64_t rows_per_step, std::uint64_t seed);

  void training_row(std::int64_t step, std::int64_t row, std::span<std::int32_t> window) const override;
  void sequential_row(std::int64_t row, std::span<std::int32_t> window) const override;
  std::int64_t sequential_rows() const override { return 1024; }  // what an evaluation of the whole split takes
  double epochs(std::int64_t) const override { return 0; }
  std::string training_position(std::int64_t step, std::int64_t row, std::int64_t index) const override;
  std::string sequential_position(std::int64_t row, std::int64_t index) const override;

 private:
  void draw(std::uint64_t key, std::int64_t row, std::span<std::int32_t> window) const;

  std::int64_t vocab_size_, rows_per_step_;
  std::uint64_t seed_;
};

}  // namespace greyhound
