// What the CPU backend keeps between calls in a Context's slot: context.cache<cpu::Cache>(). Internal.
#pragma once

#include <memory>

namespace greyhound::cpu {

// Looked up and filled by the calling thread alone, before work is spread over threads: a Context belongs to one host
// thread at a time, so nothing here takes a lock.
struct Cache {
  // Primitives of the product library by panel shape; their type is known to panel_product_onednn.cpp only.
  std::shared_ptr<void> half_products;
};

}  // namespace greyhound::cpu
