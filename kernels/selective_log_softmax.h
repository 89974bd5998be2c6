// Log-probabilities of chosen classes, without the other V - 1 of each row.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/tensor.h>
#include <greyhound/kernels/error_word.h>

namespace greyhound {

// out[i, k] = z[index[i, k]] - lse[i], computed as (z_y - M) - log S (never above 0), z = softcap(logit_scale * u) as in
// cross_entropy.h. An index equal to ignore_index gives 0; one outside [0, V) gives NaN and is recorded in
// `errors`, with its row. A row all of whose indices are ignored or bad is not read (its lse is 0).
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

namespace cpu {
void selective_log_softmax_rows(const Context&, const SelectiveLogSoftmax&);
}
namespace cuda {
void selective_log_softmax_rows(const Context&, const SelectiveLogSoftmax&);
}

}  // namespace greyhound
