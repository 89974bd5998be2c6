// Layer normalisation over the last dimension: J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer normalization", 2016.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/workspace.h>
#include <greyhound/kernels/elementwise.h>

namespace greyhound {

// out = (input - mean) * rstd * weight + bias, with mean and rstd = 1 / sqrt(var + eps) of each row.
struct LayerNormForward {
  ConstTensor input;   // [rows, C], fp32 or bf16
  ConstTensor weight;  // [C], input's dtype
  ConstTensor bias;    // [C], input's dtype; optional
  Tensor out;          // [rows, C], input's dtype
  Tensor mean;         // [rows] fp32, for backward; optional together with rstd
  Tensor rstd;         // [rows] fp32
  float eps = 1e-5f;
};
GREYHOUND_API void layernorm_forward(const Context& context, const LayerNormForward& args);

// sum = residual + dropout(branch), rounded to its dtype, and out = layer norm of sum, as residual_forward and then
// layernorm_forward give them; on CUDA in one pass over memory. sum may be residual or branch; out may not be any of
// the others.
struct ResidualLayerNorm {
  ConstTensor residual;  // [rows, C], fp32 or bf16
  ConstTensor branch;    // [rows, C], residual's dtype, as are the following ones
  Tensor sum;            // [rows, C]
  Dropout dropout;
  ConstTensor weight;  // [C]
  ConstTensor bias;    // [C]; optional
  Tensor out;          // [rows, C]
  Tensor mean;         // [rows] fp32, for backward; optional together with rstd
  Tensor rstd;         // [rows] fp32
  float eps = 1e-5f;
};
GREYHOUND_API void residual_layernorm(const Context& context, const ResidualLayerNorm& args);

// grad_input (+)= d loss / d input; grad_weight (+)= sum over rows of grad_out * xhat; grad_bias (+)= sum over
// rows of grad_out. Sums over rows are made in a fixed order.
struct LayerNormBackward {
  ConstTensor grad_out;    // [rows, C], fp32 or bf16
  ConstTensor input;       // [rows, C], as in forward
  ConstTensor weight;      // [C]
  ConstTensor mean, rstd;  // [rows] fp32
  Tensor grad_input;       // [rows, C]; must not alias grad_out unless accumulate_input is false
  bool accumulate_input = false;
  Tensor grad_weight;              // [C] fp32
  Tensor grad_bias;                // [C] fp32; optional
  bool accumulate_weight = false;  // also for grad_bias and grad_input_sums
  // [C] fp32; (+)= sum over rows of grad_input as it is then: the gradient of a bias that was added to make `input`, if
  // nothing else adds to grad_input afterwards. Optional.
  Tensor grad_input_sums;
};
GREYHOUND_API void layernorm_backward(const Context& context, const LayerNormBackward& args, Workspace& workspace);
GREYHOUND_API std::size_t layernorm_backward_workspace_bytes(const Context& context, std::int64_t rows,
                                                             std::int64_t channels);

namespace cpu {
void layernorm_forward(const Context&, const LayerNormForward&);
void residual_layernorm(const Context&, const ResidualLayerNorm&);
void layernorm_backward(const Context&, const LayerNormBackward&, Workspace&);
std::size_t layernorm_backward_workspace_bytes(const Context&, std::int64_t rows, std::int64_t channels);
}  // namespace cpu
namespace cuda {
void layernorm_forward(const Context&, const LayerNormForward&);
void residual_layernorm(const Context&, const ResidualLayerNorm&);
void layernorm_backward(const Context&, const LayerNormBackward&, Workspace&);
std::size_t layernorm_backward_workspace_bytes(const Context&, std::int64_t rows, std::int64_t channels);
}  // namespace cuda

}  // namespace greyhound
