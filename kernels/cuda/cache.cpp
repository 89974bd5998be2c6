#include <greyhound/kernels/cuda/cache.h>

#include <greyhound/core/cuda/cuda_check.h>
#include <greyhound/kernels/cuda/cublaslt.h>

namespace greyhound::cuda {

Cache& cache_of(const Context& context) {
  Cache& cache = context.cache<Cache>();
  if (cache.max_block_shared_bytes == 0) {
    const auto attribute = [&](cudaDeviceAttr which) {
      int value = 0;
      check(cudaDeviceGetAttribute(&value, which, context.device().index), "cudaDeviceGetAttribute");
      return value;
    };
    cache.compute_capability =
        10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
    cache.multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
    cache.max_block_shared_bytes = static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  }
  return cache;
}

Products& products_of(const Context& context) {
  Cache& cache = cache_of(context);
  if (!cache.products) cache.products = std::make_shared<Products>();
  return *cache.products;
}

}  // namespace greyhound::cuda
