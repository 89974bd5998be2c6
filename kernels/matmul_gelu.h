// The backward of a linear layer whose input is GELU of something: the product and GELU's gradient in one call.
#pragma once

#include <greyhound/kernels/elementwise.h>
#include <greyhound/kernels/matmul.h>

namespace greyhound {

// grad_input = (grad_out [M, K] x weight [K, N]) * gelu'(pre_activation), where the product is rounded to the tensors'
// dtype before it is multiplied, as in memory between matmul and gelu_backward; grad_bias (+)= the sum over rows of
// grad_input: the gradient of a bias that was added to make pre_activation. fp32 or bf16, one dtype; row strides are
// free. grad_input must not share memory with any operand.
//
// On the CPU these are the bits of matmul and gelu_backward, one after the other, and so they are on CUDA but for large
// bf16 products on Hopper: a kernel of ours makes those, which adds up in another order. Which kernel runs depends on
// shapes, strides, alignments and device alone.
struct MatmulGeluBackward {
  ConstTensor grad_out;        // [M, K]
  ConstTensor weight;          // [K, N]: [out, in] of the layer
  ConstTensor pre_activation;  // [M, N]
  Tensor grad_input;           // [M, N]
  Tensor grad_bias;            // [N] fp32; optional
  bool accumulate_bias = false;
};
GREYHOUND_API void matmul_gelu_backward(const Context& context, const MatmulGeluBackward& args, Workspace& workspace);

// The workspace that it takes with these arguments; only shapes and dtypes are looked at.
GREYHOUND_API std::size_t matmul_gelu_backward_workspace_bytes(const Context& context, const MatmulGeluBackward& args);

namespace detail {
// The two calls that it stands for.
Matmul product_of(const MatmulGeluBackward& args);
GeluBackward gelu_of(const MatmulGeluBackward& args);
}  // namespace detail

namespace cpu {
void matmul_gelu_backward(const Context&, const MatmulGeluBackward&, Workspace&);
std::size_t matmul_gelu_backward_workspace_bytes(const Context&, const MatmulGeluBackward&);
}  // namespace cpu
namespace cuda {
void matmul_gelu_backward(const Context&, const MatmulGeluBackward&, Workspace&);
std::size_t matmul_gelu_backward_workspace_bytes(const Context&, const MatmulGeluBackward&);
}  // namespace cuda

}  // namespace greyhound
