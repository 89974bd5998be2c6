#include <greyhound/kernels/cuda/cache.h>

#include <greyhound/core/cuda/cuda_check.h>

namespace greyhound::cuda {

Cache& cache_of(const Context& context) {
  Cache& cache = context.cache<Cache>();
  if (cache.max_block_shared_bytes == 0) {
    int bytes = 0;
    check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, context.device().index),
          "cudaDeviceGetAttribute");
    cache.max_block_shared_bytes = static_cast<std::size_t>(bytes);
  }
  return cache;
}

}  // namespace greyhound::cuda
