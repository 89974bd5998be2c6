// What the CUDA kernels keep from call to call in a context's cache slot: limits of the device, and the products'
// library handle with its chosen algorithms. Internal to the CUDA backend.
#pragma once

#include <greyhound/core/context.h>

#include <cstddef>
#include <map>
#include <memory>
#include <tuple>

namespace greyhound::cuda {

class Products;  // cublaslt.h

struct Cache {
  int compute_capability = 0;  // 90 for 9.0
  int multiprocessors = 0;
  std::size_t max_block_shared_bytes = 0;  // dynamic shared memory that one block can ask for
  // Clusters of a kernel that are on the device at once, by kernel, blocks and shared memory: see
  // row_stream_launch.cuh.
  std::map<std::tuple<const void*, unsigned, std::size_t>, int> resident_clusters;
  std::shared_ptr<Products> products;  // see products_of
};

// The cache of the context's device; reads the limits at the first call.
Cache& cache_of(const Context& context);

// The context's products; makes the library's handle at the first call, with the context's device current.
Products& products_of(const Context& context);

}  // namespace greyhound::cuda
