// Log-probabilities of chosen classes, without the other V - 1 of each row.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/tensor.h>
#include <greyhound/kernels/error_word.h>

namespace greyhound {

// out[i, k] = z[index[i, k]] - lse[i], computed as (z_y - M) - log S (never above 0), z = softcap(logit_scale * u) as
// in cross_entropy.h. An index equal to ignore_index gives 0; one outside [0, V) gives NaN and is recorded in `errors`,
// with its row. A row all of whose indices are ignored or bad is not read (its lse is 0).
struct SelectiveLogSoftmax {
  ConstTensor logits;  // [N, P], P >= V; fp32, bf16, fp16; any row stride
  ConstTensor index;   // [N] or [N, K], int32 or int64
  Tensor out;          // index's shape; fp32 or logits' dtype
  Tensor lse;          // [N] fp32; optional
  std::int64_t vocab = 0;
  std::int64_t ignore_index = -100;
  float softcap = 0;
  float logit_scale = 1;
  ErrorWord* errors = nullptr;  // on the device; optional
};
GREYHOUND_API void selective_log_softmax_rows(const Context& context, const SelectiveLogSoftmax& args);

// grad = d sum(grad_out * out) / d logits. With p_ij = exp(z_ij - lse_i), divided by the row's sum of these (which is 1
// but for the rounding of lse), over the valid indices y_ik of row i:
//   dz_ij = sum_k grad_out_ik ([j = y_ik] - p_ij);   du_ij = dz_ij logit_scale (1 - (z_ij / c)^2)
// as in cross_entropy.h. 1 - p of a class that the row is sure of is the sum of the other columns' p: it does not
// cancel. At most one class of a row can have p > 1/2, so this holds for any number of indices, repeated ones too.
// grad may be logits. An index that is ignored or out of range adds nothing, and its grad_out is not read; a row
// without a valid one is not read and gets zeros. Columns V..P-1 of grad are written 0.
struct SelectiveLogSoftmaxBackward {
  ConstTensor grad_out;    // index's shape; fp32 or logits' dtype
  ConstTensor index;       // [N] or [N, K], int32 or int64
  ConstTensor logits;      // [N, P], P >= V; fp32, bf16, fp16; any row stride
  ConstTensor lse;         // [N] fp32, as written by the forward
  Tensor grad;             // [N, P] in logits' dtype
  ConstTensor grad_scale;  // [1] fp32 on the device, read when the kernel runs: multiplies grad_out; optional
  std::int64_t vocab = 0;
  std::int64_t ignore_index = -100;
  float softcap = 0;
  float logit_scale = 1;
};
GREYHOUND_API void selective_log_softmax_backward_rows(const Context& context, const SelectiveLogSoftmaxBackward& args);

// Counts the indices out of range in `errors`, with row and value of the first.
struct CheckIndices {
  ConstTensor index;  // [N] or [N, K], int32 or int64
  std::int64_t vocab = 0;
  std::int64_t ignore_index = -100;
  ErrorWord* errors = nullptr;  // on the device
};
GREYHOUND_API void check_indices(const Context& context, const CheckIndices& args);

namespace cpu {
void selective_log_softmax_rows(const Context&, const SelectiveLogSoftmax&);
void selective_log_softmax_backward_rows(const Context&, const SelectiveLogSoftmaxBackward&);
void check_indices(const Context&, const CheckIndices&);
}  // namespace cpu
namespace cuda {
void selective_log_softmax_rows(const Context&, const SelectiveLogSoftmax&);
void selective_log_softmax_backward_rows(const Context&, const SelectiveLogSoftmaxBackward&);
void check_indices(const Context&, const CheckIndices&);
}  // namespace cuda

}  // namespace greyhound
