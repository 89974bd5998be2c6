// Cross-entropy of a final projection, in chunks of rows: the logits [N, V] never exist as a whole.
#pragma once

#include <greyhound/core/workspace.h>
#include <greyhound/loss/options.h>
#include <greyhound/loss/plan.h>
#include <greyhound/loss/sums.h>

namespace greyhound::loss {

struct LinearInputs {
  ConstTensor inputs;     // [N, D]
  ConstTensor weight;     // [P, D], P >= V stored rows; the softmax is over the first V
  ConstTensor targets;    // [N] int32 or int64
  ConstTensor bias = {};  // [P] in the weight's dtype or fp32; optional
};

// For each chunk of plan.chunk_rows rows: logits tile = inputs x weight^T + bias (in the inputs' dtype); loss and
// dlogits in place on the tile; grad_input = dlogits x weight; grad_weight += dlogits^T x inputs. The first chunk
// overwrites, unless the caller asked to accumulate. Adds to `sums`. Allocates nothing and never synchronises.
// `workspace` needs plan.workspace_bytes.
GREYHOUND_API void chunked_linear_cross_entropy(const Context& context, const Plan& plan, const LinearInputs& inputs,
                                                const CrossEntropyOptions& options, const LinearGradients& gradients,
                                                Workspace& workspace, LossSums& sums, const RowOutputs& rows = {});

}  // namespace greyhound::loss
