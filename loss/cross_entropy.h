// Cross-entropy of logits that the caller already holds.
#pragma once

#include <greyhound/core/workspace.h>
#include <greyhound/loss/options.h>
#include <greyhound/loss/sums.h>

namespace greyhound::loss {

// Workspace that cross_entropy and cross_entropy_with_grad take for N rows.
GREYHOUND_API std::size_t cross_entropy_workspace_bytes(const Context& context, std::int64_t rows);

// Raw, in place: reads logits, adds the rows' losses to `sums`, and overwrites the logits with their gradient. The
// options' default reduction here is `sum`.
//
// logits [N, P] fp32, bf16 or fp16, P >= vocab stored columns (the gradient of columns vocab..P-1 is 0), any row
// stride; targets [N] int32 or int64; vocab 0 takes P. Throws a usage Error on mismatched shapes or dtypes.
GREYHOUND_API void cross_entropy_with_grad(const Context& context, const Tensor& logits, const ConstTensor& targets,
                                           const CrossEntropyOptions& options, Workspace& workspace, LossSums& sums,
                                           const RowOutputs& rows = {}, std::int64_t vocab = 0);
GREYHOUND_API void cross_entropy_with_grad(const Context& context, const Tensor& logits, const ConstTensor& targets,
                                           Workspace& workspace, LossSums& sums);

// Functional: leaves the logits alone. grad_logits [N, P] in the logits' dtype, or an empty tensor for the loss alone.
GREYHOUND_API void cross_entropy(const Context& context, const ConstTensor& logits, const ConstTensor& targets,
                                 const Tensor& grad_logits, const CrossEntropyOptions& options, Workspace& workspace,
                                 LossSums& sums, const RowOutputs& rows = {}, std::int64_t vocab = 0);

}  // namespace greyhound::loss
