// DataSource: where tokens come from. Text, token shards and synthetic data implement it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace greyhound {

// Written in place of targets that the loss is to skip: the loss module's default ignore_index.
inline constexpr std::int32_t ignored_target = -100;

// Rows are windows of block_size + 1 tokens: the inputs are the first block_size, the targets the last. A source is
// stateless: every row is a function of its number.
class DataSource {
 public:
  virtual ~DataSource() = default;

  // Row `row` of step `step` over all ranks, into window [block_size + 1].
  virtual void training_row(std::int64_t step, std::int64_t row, std::span<std::int32_t> window) const = 0;
  // Row `row` of a pass in order without shuffling, row < sequential_rows().
  virtual void sequential_row(std::int64_t row, std::span<std::int32_t> window) const = 0;
  virtual std::int64_t sequential_rows() const = 0;

  // Sets the targets [block_size] of a row that are not to be learnt to ignored_target. Returns how many it set.
  virtual std::int64_t mask_training_row(std::int64_t /*step*/, std::int64_t /*row*/,
                                         std::span<std::int32_t> /*targets*/) const {
    return 0;
  }
  virtual std::int64_t mask_sequential_row(std::int64_t /*row*/, std::span<std::int32_t> /*targets*/) const {
    return 0;
  }

  // Passes over the data after `steps` steps.
  virtual double epochs(std::int64_t steps) const = 0;

  // Where token `index` of the row comes from, for error messages: "shard_0001.bin, token 123456".
  virtual std::string training_position(std::int64_t step, std::int64_t row, std::int64_t index) const = 0;
  virtual std::string sequential_position(std::int64_t row, std::int64_t index) const = 0;

  // Called before the rows of a step are read; throws a runtime Error when a mapped file has been cut short.
  virtual void check() const {}
  // Called between steps: memory-mapped pages may be given back.
  virtual void release() const {}
};

}  // namespace greyhound
