// The second half of a sum over rows: partial sums of blocks of rows, added up for each column. Internal to the CUDA
// backend.
#pragma once

#include <greyhound/core/cuda/cuda_check.h>

#include <cstdint>

namespace greyhound::cuda {

inline constexpr int partial_columns = 32, partial_slices = 32;

// put(j, sum) for each column j of partials [blocks, columns]: slice s of a block's threads adds blocks s, s + 32, ...
// in fp64, then the slices are added in order. Reads the partial sums once.
template <class Partial, class Put>
__global__ void __launch_bounds__(partial_columns* partial_slices)
    add_partials_kernel(const Partial* partials, std::int64_t blocks, std::int64_t columns, Put put) {
  __shared__ double sums[partial_slices][partial_columns];
  const std::int64_t column = blockIdx.x * std::int64_t{partial_columns} + threadIdx.x;
  double sum = 0;
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t block = threadIdx.y; block < blocks; block += partial_slices) {
      sum += partials[block * columns + column];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (int slice = 1; slice < partial_slices; ++slice) sum += sums[slice][threadIdx.x];
  put(column, sum);
}

// For a row of results: out[j] (+)= sum.
struct PutSum {
  float* out;
  bool accumulate;
  __device__ void operator()(std::int64_t column, double sum) const {
    out[column] = static_cast<float>(accumulate ? out[column] + sum : sum);
  }
};

template <class Partial, class Put>
void add_partials(cudaStream_t stream, const char* name, const Partial* partials, std::int64_t blocks,
                  std::int64_t columns, Put put) {
  const unsigned grid = static_cast<unsigned>((columns + partial_columns - 1) / partial_columns);
  add_partials_kernel<<<grid, dim3(partial_columns, partial_slices), 0, stream>>>(partials, blocks, columns, put);
  check_launch(name);
}

}  // namespace greyhound::cuda
