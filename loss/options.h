// Options, per-row outputs and gradient destinations shared by the losses.
#pragma once

#include <greyhound/core/tensor.h>

#include <cstdint>

namespace greyhound::loss {

enum class Reduction {
  mean,  // gradients are divided by the number of valid rows, or by the sum of their weights
  sum,   // gradients of the plain sum
  none,  // one loss per row in RowOutputs::loss; `upstream` may hold one value per row
};

// All formulas: kernels/cross_entropy.h and docs/loss.md. Every field may keep its default.
struct CrossEntropyOptions {
  Reduction reduction = Reduction::mean;
  std::int64_t ignore_index = -100;  // rows with this target add nothing and get a zero gradient
  float label_smoothing = 0;         // e in [0, 1)
  float z_loss_multiplier = 0;       // adds multiplier * lse^2 to each row's loss
  float softcap = 0;                 // c > 0: z = c tanh(u / c); 0: off
  float logit_scale = 1;             // > 0; z = softcap(logit_scale * u)
  ConstTensor class_weights;         // [V] fp32 on the device; optional
  ConstTensor row_weights;           // [N] fp32; optional

  // Device fp32, read when the kernels run, so that a captured graph can be replayed with new values.
  ConstTensor upstream;     // [1], or [N] with Reduction::none; optional: 1
  ConstTensor denominator;  // [1], with Reduction::mean: replaces the count of this call's own valid rows (the
                            // global count of a step over micro-batches and ranks). 0 makes gradients 0
};

// What to keep of each row; every given tensor is [N], dense, and written for every row. Ignored rows get 0
// (argmax -1), rows with a target out of range NaN (argmax -1).
struct RowOutputs {
  Tensor loss = {}, lse = {}, target_logprob = {}, entropy = {};  // fp32
  Tensor argmax = {};                                             // int32
};

// Where a gradient goes, and whether it replaces or adds to what is there. A default Gradient is not computed.
struct Gradient {
  Tensor tensor;
  bool accumulate = false;
  explicit operator bool() const { return static_cast<bool>(tensor); }
};

inline Gradient overwrite(const Tensor& tensor) { return {tensor, false}; }
inline Gradient accumulate(const Tensor& tensor) { return {tensor, true}; }

// Gradients of a projection to compute; each may be left out (frozen inputs, frozen head, loss alone).
struct LinearGradients {
  Gradient input = {};   // [N, D] in the inputs' dtype
  Gradient weight = {};  // [P, D] fp32 or the weight's dtype; rows V..P-1 get 0 (overwrite) or stay (accumulate)
  Gradient bias = {};    // [P] fp32
};

}  // namespace greyhound::loss
