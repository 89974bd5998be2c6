// Log-probabilities of chosen classes.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/tensor.h>
#include <greyhound/kernels/error_word.h>

#include <cstdint>

namespace greyhound::loss {

struct SelectiveLogSoftmaxOptions {
  std::int64_t ignore_index = -100;  // its output is 0
  float softcap = 0;
  float logit_scale = 1;
  std::int64_t vocab = 0;       // logical V; 0: the stored columns
  ErrorWord* errors = nullptr;  // on the device; counts indices out of range, whose output is NaN
};

// out[..., k] = log softmax(logits[..., :])[index[..., k]].
// logits [..., V], any leading dimensions; index [...] or [..., K], int32 or int64; out has the index's shape, fp32 or
// the logits' dtype. lse [...] fp32, for the backward; optional.
GREYHOUND_API void selective_log_softmax(const Context& context, const ConstTensor& logits, const ConstTensor& index,
                                         const Tensor& out, const SelectiveLogSoftmaxOptions& options = {},
                                         const Tensor& lse = {});

// Gradient of sum(grad_out * out), out as above: grad_logits[..., j] = sum_k grad_out[..., k] ([j = index[..., k]] -
// p_j), and through softcap and logit_scale. grad_out has the index's shape, fp32 or the logits' dtype; lse [...] fp32
// as written by the forward. grad_logits [..., V] in the logits' dtype may be the logits themselves; padded columns get
// 0. An index that is ignored or out of range adds nothing; a row without a valid one is not read and gets zeros.
GREYHOUND_API void selective_log_softmax_backward(const Context& context, const ConstTensor& grad_out,
                                                  const ConstTensor& index, const ConstTensor& logits,
                                                  const ConstTensor& lse, const Tensor& grad_logits,
                                                  const SelectiveLogSoftmaxOptions& options = {});

}  // namespace greyhound::loss
