#include <greyhound/kernels/cuda/checksum.h>

#include <greyhound/core/cuda/cuda_check.h>
#include <greyhound/kernels/cuda/block_reduce.cuh>

#include <algorithm>

namespace greyhound::cuda {

namespace {

constexpr int checksum_threads = 256;
constexpr std::int64_t most_blocks = 1024;

// The finisher of splitmix64: G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators",
// 2014.
__device__ inline std::uint64_t mix(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// Adds up what each element's place and bits give: integers, so that the order does not matter.
template <class Bits>
__global__ void __launch_bounds__(checksum_threads)
    checksum_kernel(const Bits* matrix, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                    unsigned long long* sum) {
  unsigned long long own = 0;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (std::int64_t column = threadIdx.x; column < columns; column += checksum_threads) {
      const std::uint64_t place = static_cast<std::uint64_t>(row * columns + column);
      own += mix(mix(place + 1) + matrix[row * stride + column]);
    }
  }
  __shared__ unsigned long long shared[max_warps];
  own = block_reduce(own, 0ull, shared, [](unsigned long long& a, unsigned long long b) { a += b; });
  if (threadIdx.x == 0) atomicAdd(sum, own);
}

}  // namespace

std::uint64_t checksum(cudaStream_t stream, const ConstTensor& matrix, void* scratch) {
  const auto sum = static_cast<unsigned long long*>(scratch);
  check(cudaMemsetAsync(sum, 0, sizeof *sum, stream), "checksum");
  const std::int64_t rows = matrix.rows(), columns = matrix.columns(), stride = std::max(matrix.row_stride, columns);
  if (rows > 0 && columns > 0) {
    const unsigned blocks = static_cast<unsigned>(std::min(rows, most_blocks));
    if (matrix.dtype == DType::fp32) {
      checksum_kernel<<<blocks, checksum_threads, 0, stream>>>(static_cast<const std::uint32_t*>(matrix.data), rows,
                                                               columns, stride, sum);
    } else {
      checksum_kernel<<<blocks, checksum_threads, 0, stream>>>(static_cast<const std::uint16_t*>(matrix.data), rows,
                                                               columns, stride, sum);
    }
    check_launch("checksum");
  }
  unsigned long long value = 0;
  check(cudaMemcpyAsync(&value, sum, sizeof value, cudaMemcpyDeviceToHost, stream), "checksum");
  check(cudaStreamSynchronize(stream), "checksum");
  return value;
}

}  // namespace greyhound::cuda
