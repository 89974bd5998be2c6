// The optimiser's operators over one contiguous block of parameters: global gradient norm and AdamW.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/workspace.h>

namespace greyhound {

// norm = sqrt(sum of grads^2), summed in fp64 in a fixed order. NaN or infinity where a gradient is.
struct GradientNorm {
  ConstTensor grads;  // [n] fp32
  Tensor norm;        // [1] fp32
};
GREYHOUND_API void gradient_norm(const Context& context, const GradientNorm& args, Workspace& workspace);
GREYHOUND_API std::size_t gradient_norm_workspace_bytes(const Context& context, std::int64_t n);

// Parameters [begin, end) of the block with this weight decay. Ranges cover the block in order.
struct DecayRange {
  std::int64_t begin, end;
  float weight_decay;
};

// AdamW (I. Loshchilov, F. Hutter, "Decoupled weight decay regularization", 2019), with clipping by the global
// norm folded in. With g = grad * min(1, grad_clip / norm) (grad_clip 0: no clipping) and t = steps_taken + 1:
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   w = w - lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay w)
// and steps_taken becomes t. When the norm is not finite nothing at all changes: the step is skipped on the device.
struct AdamW {
  Tensor weights;          // [n] fp32 (master weights)
  Tensor working_weights;  // [n] bf16: the rounded copy that the model computes with; optional
  ConstTensor grads;       // [n] fp32
  Tensor m, v;             // [n] fp32
  ConstTensor norm;        // [1] fp32, from gradient_norm
  Tensor steps_taken;      // [1] int64, Adam's t
  const DecayRange* ranges = nullptr;
  std::int64_t range_count = 0;
  float lr = 0, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, grad_clip = 0;
};
GREYHOUND_API void adamw(const Context& context, const AdamW& args);

namespace cpu {
void gradient_norm(const Context&, const GradientNorm&, Workspace&);
std::size_t gradient_norm_workspace_bytes(const Context&, std::int64_t n);
void adamw(const Context&, const AdamW&);
}  // namespace cpu
namespace cuda {
void gradient_norm(const Context&, const GradientNorm&, Workspace&);
std::size_t gradient_norm_workspace_bytes(const Context&, std::int64_t n);
void adamw(const Context&, const AdamW&);
}  // namespace cuda

}  // namespace greyhound
