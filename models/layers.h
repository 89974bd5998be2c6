// The layers that models are made of: weights with their gradients, and a forward and a backward over the operators of
// kernels/. Another norm or activation becomes another struct with the same pair of functions. Internal to models/.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/workspace.h>
#include <greyhound/kernels/elementwise.h>
#include <greyhound/models/parameters.h>

#include <string>

namespace greyhound {

// A parameter and where its gradient goes (empty for evaluation).
struct Weight {
  ConstTensor value;  // in the model's precision
  Tensor grad;        // fp32
  explicit operator bool() const { return static_cast<bool>(value); }
};

// out = input W^T + b, W [out, in], b [out] or none.
struct Linear {
  Weight weight, bias;
};
void linear_forward(const Context& context, const Linear& linear, const ConstTensor& input, const Tensor& out,
                    Workspace& workspace);
// pre_activation = input W^T + b; out = gelu(pre_activation), in the product's epilogue.
void linear_gelu_forward(const Context& context, const Linear& linear, const ConstTensor& input,
                         const Tensor& pre_activation, const Tensor& out, Workspace& workspace);
// grad_W (+)= grad_out^T input; then grad_input = grad_out W, which may be `input`'s memory.
void linear_backward(const Context& context, const Linear& linear, const ConstTensor& grad_out,
                     const ConstTensor& input, const Tensor& grad_input, bool accumulate, Workspace& workspace);
// The same for a layer behind linear_gelu_forward: grad_W (+)= grad_out^T input; then grad_pre_activation =
// (grad_out W) gelu'(pre_activation), which may be `input`'s memory; and grad_bias_before, if given, (+)= its sum over
// rows: of the layer that made pre_activation.
void linear_gelu_backward(const Context& context, const Linear& linear, const ConstTensor& grad_out,
                          const ConstTensor& input, const ConstTensor& pre_activation,
                          const Tensor& grad_pre_activation, const Tensor& grad_bias_before, bool accumulate,
                          Workspace& workspace);
// grad_b (+)= sum over rows of grad_out, where no operator that wrote grad_out has made that sum on its way.
void bias_backward(const Context& context, const Linear& linear, const ConstTensor& grad_out, bool accumulate,
                   Workspace& workspace);
// Scratch of a layer [out, in] for `rows` rows of input: forward alone, or forward and backward.
std::size_t linear_workspace_bytes(const Context& context, DType dtype, std::int64_t rows, std::int64_t in,
                                   std::int64_t out, bool backward);

// out = (input - mean) rstd w + b, b or none.
struct LayerNorm {
  Weight weight, bias;
};
// What forward keeps of a norm for backward.
struct NormStatistics {
  Tensor mean, rstd;  // [rows] fp32
};
void norm_forward(const Context& context, const LayerNorm& norm, const ConstTensor& input, const Tensor& out,
                  const NormStatistics& statistics);
// sum.out = sum.residual + dropout(sum.branch), which may be either of the two; out = norm of that.
void add_and_norm(const Context& context, const LayerNorm& norm, const ResidualForward& sum, const Tensor& out,
                  const NormStatistics& statistics);
// grad_input (+)= d loss / d input; grad_w and grad_b (+)= theirs. Without accumulate_input it may be grad_out.
// grad_bias_before, if given, (+)= the sum over rows of grad_input: of the layer whose output was added to `input`.
void norm_backward(const Context& context, const LayerNorm& norm, const ConstTensor& grad_out, const ConstTensor& input,
                   const NormStatistics& statistics, const Tensor& grad_input, bool accumulate_input, bool accumulate,
                   Workspace& workspace, const Tensor& grad_bias_before = {});

// Looks a layer's tensors up in the blocks of weights and gradients by name: "h.0.ln_1" has "h.0.ln_1.weight" and, when
// `bias`, "h.0.ln_1.bias".
struct ParameterBlocks {
  const ParameterList& list;
  Tensor weights;
  Tensor gradients;  // empty for evaluation

  Weight weight(const std::string& name) const;
  Linear linear(const std::string& name, bool bias) const;
  LayerNorm norm(const std::string& name, bool bias) const;
};

}  // namespace greyhound
