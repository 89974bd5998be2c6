// Products by cuBLASLt, with the algorithm of each shape chosen once and kept. Internal to the CUDA backend.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/memory.h>
#include <greyhound/core/tensor.h>

#include <cublasLt.h>

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <string>

namespace greyhound::cuda {

// to = alpha * op(a) x op(b) + beta * from + bias, row-major; every dimension at least 1.
struct Product {
  ConstTensor a, b;
  ConstTensor from;  // read when beta is not 0
  Tensor to;         // from's shape and dtype; may be from
  bool transpose_a, transpose_b;
  float alpha, beta;
  const float* scalars;  // alpha and beta in device memory; nullptr: the two above
  const void* bias;      // [N] in to's dtype; nullptr: none
  void* workspace;
  std::size_t workspace_bytes;
};

class Products {
 public:
  Products();
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Enqueues the product. False, with nothing enqueued, where the library has no algorithm for it. The first call of a
  // shape asks the library's heuristic on the host; later ones only look the answer up.
  bool multiply(const Context& context, const Product& product);

  static std::string library();

 private:
  struct Algorithm;
  // Everything the choice depends on: shape, strides, dtypes, alignments, epilogue, workspace.
  using Key = std::array<std::int64_t, 17>;

  Key key_of(const Product& product) const;
  std::unique_ptr<Algorithm> choose(const Product& product, const Key& key) const;

  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, std::unique_ptr<Algorithm>> algorithms_;
};

}  // namespace greyhound::cuda
