// Products by cuBLASLt, with the algorithm of each shape chosen once and kept. Internal to the CUDA backend.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/tensor.h>
#include <greyhound/kernels/matmul_choice.h>

#include <cublasLt.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace greyhound::cuda {

// What the library gets to work with, whatever the shape: NVIDIA recommends 32 MiB for Hopper, 4 MiB before.
inline constexpr std::size_t library_workspace_bytes = std::size_t{32} << 20;

// to = alpha * op(a) x op(b) + beta * from + bias, row-major; every dimension at least 1.
struct Product {
  ConstTensor a, b;
  ConstTensor from;  // read when beta is not 0
  Tensor to;         // from's shape and dtype; may be from
  bool transpose_a, transpose_b;
  float alpha, beta;
  const float* scalars;  // alpha and beta in device memory; nullptr: the two above
  const void* bias;      // [N] in to's dtype, aligned to 16 bytes; nullptr: none
  void* workspace;       // library_workspace_bytes, aligned to memory_alignment
};

// The library's handle and the algorithms of one context. All but the products themselves happens on the host.
class Products {
 public:
  Products();
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Enqueues the product. False, with nothing enqueued, where the library has no algorithm for it. The first call of a
  // shape takes the algorithm that was tuned or loaded for it, or else asks the library's heuristic; later calls only
  // look the answer up. Throws where the library refuses a loaded algorithm.
  bool multiply(const Context& context, const Product& product);

  // Times the heuristic's candidates, those that give the bits of the first on these operands, and keeps the fastest
  // for later products of this shape. False, with no choice made, where the library has none. Waits for the stream;
  // what `to` holds afterwards is undefined.
  bool tune(const Context& context, const Product& product);

  // From here on, multiply() tunes a product that has no choice yet before it makes it.
  void tune_new(bool wanted) { tunes_new_ = wanted; }
  bool tunes_new() const { return tunes_new_; }

  const std::map<MatmulKey, cublasLtMatmulAlgo_t>& choices() const { return choices_; }
  void choose(const MatmulKey& key, const cublasLtMatmulAlgo_t& algorithm);

  static std::string library();

 private:
  struct Call;

  Call& prepared(const Product& product, const MatmulKey& key);
  cublasStatus_t enqueue(const Context& context, const Product& product, const Call& call,
                         const cublasLtMatmulAlgo_t& algorithm) const;

  std::vector<cublasLtMatmulAlgo_t> alike(const Context& context, const Product& product, const Call& call,
                                          const std::vector<cublasLtMatmulAlgo_t>& algorithms) const;

  cublasLtHandle_t handle_ = nullptr;
  bool tunes_new_ = false;
  std::map<MatmulKey, cublasLtMatmulAlgo_t> choices_;  // tuned and loaded
  std::map<MatmulKey, std::unique_ptr<Call>> calls_;   // seen
};

}  // namespace greyhound::cuda
