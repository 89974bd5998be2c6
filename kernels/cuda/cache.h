// What the CUDA kernels keep from call to call in a context's cache slot: limits of the device, and the products'
// library handle with its chosen algorithms. Internal to the CUDA backend.
#pragma once

#include <greyhound/core/context.h>

#include <cstddef>
#include <memory>

namespace greyhound::cuda {

class Products;  // cublaslt.h

struct Cache {
  std::size_t max_block_shared_bytes = 0;  // dynamic shared memory that one block can ask for
  std::shared_ptr<Products> products;      // made by the first product
};

// The cache of the context's device; reads the limits at the first call.
Cache& cache_of(const Context& context);

}  // namespace greyhound::cuda
