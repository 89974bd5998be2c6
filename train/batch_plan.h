// How the rows of a step are divided among ranks and micro-batches.
#pragma once

#include <cstdint>

namespace greyhound {

// A row is one sequence of block_size tokens. rows = ranks * accumulation * micro_batch.
struct BatchPlan {
  std::int64_t block_size = 0;  // T
  std::int64_t ranks = 1;
  std::int64_t micro_batch = 0;   // rows of one forward and backward pass on one rank
  std::int64_t accumulation = 0;  // micro-batches of a step on one rank

  std::int64_t rows_per_rank() const { return micro_batch * accumulation; }
  std::int64_t rows() const { return rows_per_rank() * ranks; }  // of the whole step
  std::int64_t tokens() const { return rows() * block_size; }    // of the whole step
};

// `micro_batch` is a ceiling: the largest number of rows up to it that divides a rank's rows is taken, and accumulation
// follows. batch_tokens counts the whole step over all ranks; 0 stands for micro_batch * block_size * ranks. Throws a
// usage Error with the numbers when batch_tokens is not a whole number of rows or the rows do not divide among the
// ranks.
BatchPlan plan_batch(std::int64_t micro_batch, std::int64_t batch_tokens, std::int64_t block_size, std::int64_t ranks);

}  // namespace greyhound
