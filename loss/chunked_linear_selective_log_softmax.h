// Log-probabilities of chosen classes of a final projection, in chunks of rows.
#pragma once

#include <greyhound/core/workspace.h>
#include <greyhound/loss/options.h>
#include <greyhound/loss/plan.h>
#include <greyhound/loss/selective_log_softmax.h>

namespace greyhound::loss {

struct LinearIndex {
  ConstTensor inputs;     // [N, D]
  ConstTensor weight;     // [P, D], P >= V stored rows; the softmax is over the first V
  ConstTensor index;      // [N] or [N, K], int32 or int64
  ConstTensor bias = {};  // [P] in the weight's dtype or fp32; optional
};

// out[i, k] = log softmax(inputs x weight^T + bias)[i, index[i, k]], without logits [N, V]. out has the index's shape,
// fp32 or the inputs' dtype; lse [N] fp32, for the backward; optional. `workspace` needs plan.workspace_bytes.
GREYHOUND_API void chunked_linear_selective_log_softmax(const Context& context, const Plan& plan,
                                                        const LinearIndex& inputs, const Tensor& out,
                                                        const SelectiveLogSoftmaxOptions& options, Workspace& workspace,
                                                        const Tensor& lse = {});

// Gradients of sum(grad_out * out): each chunk's logits are made again. grad_out has the index's shape, fp32 or the
// inputs' dtype; lse [N] fp32 as written by the forward.
GREYHOUND_API void chunked_linear_selective_log_softmax_backward(const Context& context, const Plan& plan,
                                                                 const LinearIndex& inputs, const ConstTensor& grad_out,
                                                                 const ConstTensor& lse,
                                                                 const SelectiveLogSoftmaxOptions& options,
                                                                 const LinearGradients& gradients,
                                                                 Workspace& workspace);

}  // namespace greyhound::loss
