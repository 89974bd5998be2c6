// Partitions of work that the CPU's element-wise and row kernels share. They depend on shapes alone, never on the
// number of threads, and so do the results. Internal to the CPU backend.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/dtype.h>
#include <greyhound/core/tensor.h>

#include <algorithm>
#include <cstdint>

namespace greyhound::cpu {

inline constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Below this many elements waking the other threads costs more than they save.
inline constexpr std::int64_t parallel_elements = 16384;

// Columns of one task of an element-wise loop: a multiple of 4 (dropout draws four columns at once) whose operands fit
// the first-level cache.
inline constexpr std::int64_t block_columns = 2048;

// Calls body(row, first, count) for pieces of at most block_columns columns that cover rows x columns.
template <class Body>
void for_each_block(const Context& context, std::int64_t rows, std::int64_t columns, Body&& body) {
  const std::int64_t per_row = ceil_div(columns, block_columns);
  const std::int64_t blocks = rows * per_row;
  const bool parallel = rows * columns >= parallel_elements;
#pragma omp parallel for num_threads(context.threads()) schedule(static) if (parallel)
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t first = block % per_row * block_columns;
    body(block / per_row, first, std::min(block_columns, columns - first));
  }
}

// Calls function(TypeTag<float or bf16>{}); the operator has checked that the dtype is one of these.
template <class Function>
void dispatch_fp32_bf16(DType dtype, Function&& function) {
  if (dtype == DType::fp32) {
    function(TypeTag<float>{});
  } else {
    function(TypeTag<bf16>{});
  }
}

// Rows cut into at most 64 blocks, for sums over rows: each block has a partial sum of its own, and partial sums
// are added in order of blocks.
struct RowBlocks {
  std::int64_t rows = 0, size = 1, count = 0;

  explicit RowBlocks(std::int64_t rows)
      : rows(rows), size(std::max<std::int64_t>(16, ceil_div(rows, 64))), count(ceil_div(rows, size)) {}
  std::int64_t begin(std::int64_t block) const { return block * size; }
  std::int64_t end(std::int64_t block) const { return std::min(rows, (block + 1) * size); }
};

// Columns of one task of a sum over rows; their fp64 sums stand on the stack.
inline constexpr std::int64_t sum_columns = 256;

// out[j] (+)= sum over blocks of partials[block * stride + j], in order of blocks, rounded once.
inline void add_partials(const Context& context, const double* partials, std::int64_t blocks, std::int64_t stride,
                         std::int64_t columns, float* out, bool accumulate) {
  const std::int64_t tasks = ceil_div(columns, sum_columns);
#pragma omp parallel for num_threads(context.threads()) schedule(static) if (blocks * columns >= parallel_elements)
  for (std::int64_t task = 0; task < tasks; ++task) {
    const std::int64_t first = task * sum_columns, count = std::min(sum_columns, columns - first);
    double sums[sum_columns] = {};
    for (std::int64_t block = 0; block < blocks; ++block) {
      const double* partial = partials + block * stride + first;
      for (std::int64_t j = 0; j < count; ++j) sums[j] += partial[j];
    }
    for (std::int64_t j = 0; j < count; ++j) {
      out[first + j] = static_cast<float>(accumulate ? out[first + j] + sums[j] : sums[j]);
    }
  }
}

}  // namespace greyhound::cpu
