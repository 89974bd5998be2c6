// Row kernels of the language-model-head losses: cross-entropy with its gradient in one pass, the count of
// valid targets, and the one reduction of row results.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/workspace.h>
#include <greyhound/kernels/error_word.h>

namespace greyhound {

// The targets of rows: class indices, and which of them count.
struct Targets {
  ConstTensor index;                 // [N], int32 or int64, read at full width
  std::int64_t vocab = 0;            // V: valid targets are 0 <= y < V
  std::int64_t ignore_index = -100;  // rows with this target add nothing; any value, also inside [0, V)
};

// For each row, with raw logits u, z = softcap(logit_scale * u), softcap(x) = c tanh(x / c) (c = 0: z = x), a column of
// raw -inf *masked* (in no sum), V' unmasked columns, M = max z, S = sum exp(z - M), S_other = S without the target,
// lse = M + log S, p_j = exp(z_j - M) / S, e = label_smoothing, k = 1 + 2 z_loss_multiplier lse,
// w = class_weight[y] row_weight[i], s = upstream / denominator (0 when the denominator is 0):
//   ce   = (1 - e) (M - z_y) + (e / V') sum_unmasked (M - z_j) + log S
//   loss = w (ce + z_loss_multiplier lse^2)
//   dz_j = s w (k p_j - e / V'), j unmasked and not y;   dz_y = s w (-S_other / S + (k - 1) p_y + e - e / V')
//   du_j = dz_j logit_scale (1 - (z_j / c)^2) (the last factor only with a softcap); 0 for masked columns but y
// grad may be logits: z_y is read before anything of the row is written. Columns V..P-1 of grad are written 0.
// A row that is ignored is not read: gradient 0, row results 0. A target outside [0, V) that is not
// ignore_index: the same, but its optional outputs are NaN. A masked target: loss +inf, gradient of the
// formula. Only masked columns: NaN. A NaN or +inf logit makes its row NaN.
// Row mathematics in fp32; each gradient is rounded once.
struct CrossEntropyRows {
  ConstTensor logits;  // [N, P] with P >= V columns; fp32, bf16, fp16; any row stride
  Targets targets;
  Tensor grad;  // [N, P] in logits' dtype; optional (forward only); may be the logits' memory

  // Row results for sum_rows, fp32 [N], always given: w ce and w lse^2; and w itself where weights are used.
  Tensor row_ce, row_z;
  Tensor row_weight;  // optional

  // What the caller asked to keep of each row, [N]; each optional; written for every row.
  Tensor loss, lse, target_logprob, entropy;  // fp32
  Tensor argmax;                              // int32: lowest index of the largest unmasked logit

  ConstTensor class_weights;  // [V] fp32; optional
  ConstTensor row_weights;    // [N] fp32; optional
  ConstTensor upstream;       // fp32, [1] or [N]; optional: 1
  ConstTensor denominator;    // fp32 [1]; optional: 1. Read when the kernel runs

  float z_loss_multiplier = 0;
  float label_smoothing = 0;
  float softcap = 0;
  float logit_scale = 1;
};
GREYHOUND_API void cross_entropy_rows(const Context& context, const CrossEntropyRows& args);

// out [1] fp32 = number of valid targets, or the sum of class_weights[y] row_weights[i] over them where given.
struct CountTargets {
  Targets targets;
  ConstTensor class_weights;  // [V] fp32; optional
  ConstTensor row_weights;    // [N] fp32; optional
  Tensor out;
};
GREYHOUND_API void count_targets(const Context& context, const CountTargets& args);

// Sums of the losses of many calls, in device memory.
struct LossSumsData {
  double ce_sum;      // sum of w ce, without the z-loss
  double z_sum;       // sum of w lse^2, whatever the multiplier
  double weight_sum;  // sum of w over the valid rows
  std::int64_t n_valid;
  std::int64_t nonfinite_rows;  // valid rows whose w ce or w lse^2 is not finite
  ErrorWord errors;             // targets out of range
};

// Adds the row results of one call to `sums`, in fp64 in an order that depends on N alone.
struct SumRows {
  ConstTensor row_ce, row_z;  // [N] fp32
  ConstTensor row_weight;     // [N] fp32; optional: 1 for each valid row
  Targets targets;
  LossSumsData* sums = nullptr;  // on the device
};
GREYHOUND_API void sum_rows(const Context& context, const SumRows& args);

namespace cpu {
void cross_entropy_rows(const Context&, const CrossEntropyRows&);
void count_targets(const Context&, const CountTargets&);
void sum_rows(const Context&, const SumRows&);
}  // namespace cpu
namespace cuda {
void cross_entropy_rows(const Context&, const CrossEntropyRows&);
void count_targets(const Context&, const CountTargets&);
void sum_rows(const Context&, const SumRows&);
}  // namespace cuda

}  // namespace greyhound
