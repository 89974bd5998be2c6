// Element-wise operators: GELU, residual addition with dropout, casts, and column sums for bias gradients.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/rng.h>
#include <greyhound/core/workspace.h>

namespace greyhound {

// Key and first row of masks.
struct DropoutOrigin {
  std::uint64_t key = 0;
  std::uint64_t first_row = 0;
};

// Which elements dropout keeps is a function of key, the row's global number and the column alone: words of
// Philox at counter (low = column / 4, high = first_row + row); kept where uniform(word) >= probability,
// and scaled by 1 / (1 - probability).
struct Dropout {
  float probability = 0;  // in [0, 1); 0 keeps everything and draws nothing
  std::uint64_t key = 0;
  std::uint64_t first_row = 0;
  // Optional, on the context's device, so that a call captured in a graph draws other masks at each launch: `key` and
  // `first_row` count from there, see mask_origin. Read when the call runs.
  const DropoutOrigin* origin = nullptr;
};

// What masks are drawn with, where `origin` is read: key and first_row themselves, or mix_key(origin->key, key) and
// origin->first_row + first_row.
GREYHOUND_HOST_DEVICE inline DropoutOrigin mask_origin(const DropoutOrigin* origin, std::uint64_t key,
                                                       std::uint64_t first_row) {
  if (origin == nullptr) return {key, first_row};
  return {mix_key(origin->key, key), origin->first_row + first_row};
}

// out = 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), the form GPT-2 uses: D. Hendrycks, K. Gimpel,
// "Gaussian error linear units", 2016. Any shape; fp32 or bf16; out may be input.
struct GeluForward {
  ConstTensor input;
  Tensor out;
};
GREYHOUND_API void gelu_forward(const Context& context, const GeluForward& args);

// grad_input = grad_out * gelu'(input). grad_input may be grad_out. grad_bias (+)= column_sum of grad_input, to the
// bit: the gradient of a bias that was added to make `input`; on CUDA in the same pass over memory.
struct GeluBackward {
  ConstTensor grad_out, input;  // [rows, C], fp32 or bf16; without grad_bias of any shape
  Tensor grad_input;
  Tensor grad_bias;  // [C] fp32; optional
  bool accumulate_bias = false;
};
// The workspace, of column_sum_workspace_bytes, serves grad_bias alone.
GREYHOUND_API void gelu_backward(const Context& context, const GeluBackward& args, Workspace& workspace);

// out = cap tanh(input / cap), between -cap and cap; infinite values stay what they are, as in the losses. Any shape;
// fp32 or bf16; out may be input.
struct Softcap {
  ConstTensor input;
  Tensor out;
  float cap = 0;  // > 0
};
GREYHOUND_API void softcap(const Context& context, const Softcap& args);

// out = residual + dropout(branch), [rows, C]; out may be either input. fp32 or bf16.
struct ResidualForward {
  ConstTensor residual, branch;
  Tensor out;
  Dropout dropout;
};
GREYHOUND_API void residual_forward(const Context& context, const ResidualForward& args);

// out = dropout(input), [rows, C]; also its own backward. out may be input.
struct DropoutApply {
  ConstTensor input;
  Tensor out;
  Dropout dropout;
};
GREYHOUND_API void dropout_apply(const Context& context, const DropoutApply& args);

// out (+)= sum over rows of input [rows, C], fp32 [C], in a fixed order: the gradient of a bias.
struct ColumnSum {
  ConstTensor input;  // fp32, bf16
  Tensor out;         // [C] fp32
  bool accumulate = false;
};
GREYHOUND_API void column_sum(const Context& context, const ColumnSum& args, Workspace& workspace);
GREYHOUND_API std::size_t column_sum_workspace_bytes(const Context& context, std::int64_t rows, std::int64_t columns);

// to = from, rounded to nearest even when narrowing; any pair of fp32, bf16, fp16; row strides are free.
struct Cast {
  ConstTensor from;
  Tensor to;
};
GREYHOUND_API void cast(const Context& context, const Cast& args);

namespace cpu {
void gelu_forward(const Context&, const GeluForward&);
void gelu_backward(const Context&, const GeluBackward&, Workspace&);
void softcap(const Context&, const Softcap&);
void residual_forward(const Context&, const ResidualForward&);
void dropout_apply(const Context&, const DropoutApply&);
void column_sum(const Context&, const ColumnSum&, Workspace&);
std::size_t column_sum_workspace_bytes(const Context&, std::int64_t rows, std::int64_t columns);
void cast(const Context&, const Cast&);
}  // namespace cpu
namespace cuda {
void gelu_forward(const Context&, const GeluForward&);
void gelu_backward(const Context&, const GeluBackward&, Workspace&);
void softcap(const Context&, const Softcap&);
void residual_forward(const Context&, const ResidualForward&);
void dropout_apply(const Context&, const DropoutApply&);
void column_sum(const Context&, const ColumnSum&, Workspace&);
std::size_t column_sum_workspace_bytes(const Context&, std::int64_t rows, std::int64_t columns);
void cast(const Context&, const Cast&);
}  // namespace cuda

}  // namespace greyhound
