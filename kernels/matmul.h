// Matrix products with the epilogues of linear layers.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/workspace.h>

namespace greyhound {

// What becomes of the product's value x: out = x; or out = gelu(x).
enum class Activation { none, gelu };

// out [M, N] = activation(alpha * op(a) [M, K] x op(b) [K, N] + beta * out + bias), row-major.
//
// a is [M, K], or [K, M] with transpose_a; b is [K, N], or [N, K] with transpose_b (a weight [out, in] of a
// linear layer). Row strides are free. a and b share one dtype (fp32, bf16, fp16); out has that dtype or
// fp32. Products are accumulated in fp32 and rounded once. With beta = 0 `out` is never read. The result
// does not depend on the number of threads. M, N or K of 0 is legal (K = 0: beta * out + bias).
//
// GELU reads the value rounded to out's dtype, so that out is, to the bit, what gelu_forward makes of pre_activation.
struct Matmul {
  ConstTensor a;
  ConstTensor b;
  Tensor out;
  bool transpose_a = false;
  bool transpose_b = false;
  float alpha = 1;
  float beta = 0;
  ConstTensor bias;  // [N] in a's dtype or fp32, added to every row; optional
  Activation activation = Activation::none;
  Tensor pre_activation;     // [M, N] in out's dtype: the value before the activation; optional
  ConstTensor alpha_factor;  // [1] fp32 on the device, read when the product runs: multiplies alpha; optional
};

GREYHOUND_API void matmul(const Context& context, const Matmul& args, Workspace& workspace);

// The bytes of workspace that matmul asks for with these arguments; only shapes and dtypes are looked at, so operands
// whose strides or alignments rule out a faster way may take less. On CUDA this also makes the library's handle, so
// that a product can be captured in a graph without having run before.
GREYHOUND_API std::size_t matmul_workspace_bytes(const Context& context, const Matmul& args);

// Which library makes the products of this build on the context's device: "oneDNN 2.6.3", "built-in", ...
GREYHOUND_API std::string matmul_library(const Context& context);

namespace cpu {
void matmul(const Context&, const Matmul&, Workspace&);
std::size_t matmul_workspace_bytes(const Context&, const Matmul&);
std::string matmul_library();
}  // namespace cpu
namespace cuda {
void matmul(const Context&, const Matmul&, Workspace&);
std::size_t matmul_workspace_bytes(const Context&, const Matmul&);
std::string matmul_library();
}  // namespace cuda

}  // namespace greyhound
