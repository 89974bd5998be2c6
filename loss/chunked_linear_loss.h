// Your own loss of a final projection, in chunks of rows: the logits [N, V] never exist as a whole.
#pragma once

#include <greyhound/core/workspace.h>
#include <greyhound/loss/options.h>
#include <greyhound/loss/plan.h>
#include <greyhound/loss/sums.h>

#include <cstdint>
#include <functional>

namespace greyhound::loss {

// A chunk of logits, as the callback of chunked_linear_loss sees it. Row i of the tile is row first_row + i of the
// call; per-row arguments of the loss are the callback's own business.
struct LogitsTile {
  Tensor logits;    // [rows, V] in the inputs' dtype, strided: logits in, dlogits out
  Tensor row_loss;  // [rows] fp32, dense: the callback writes each row's loss here
  std::int64_t first_row = 0;
  bool gradients = false;  // false: no gradient was asked for, and the logits may be left as they are
};

// Overwrites tile.logits with the gradient of the sum over rows (times the caller's scale, if any), and tile.row_loss
// with the rows' losses. On CUDA it enqueues on context.stream() and must not synchronise. An exception ends the call
// and leaves the stream usable.
using RowLoss = std::function<void(const Context& context, const LogitsTile& tile)>;

struct ProjectionInputs {
  ConstTensor inputs;     // [N, D]
  ConstTensor weight;     // [P, D], P >= V stored rows; the tile has the first V columns
  ConstTensor bias = {};  // [P] in the weight's dtype or fp32; optional
};

// The schedule of chunked_linear_cross_entropy around any loss that is a sum over rows. Adds the sum of the rows'
// losses to sums.ce_sum, N to n_valid and weight_sum, and counts rows that are not finite. The sum is made in fp64
// after the last chunk, in the order of the rows. `workspace` needs plan.workspace_bytes.
GREYHOUND_API void chunked_linear_loss(const Context& context, const Plan& plan, const ProjectionInputs& inputs,
                                       const RowLoss& row_loss, const LinearGradients& gradients, Workspace& workspace,
                                       LossSums& sums);

}  // namespace greyhound::loss
