// The loss over data-parallel ranks: one denominator before the gradients, one sum for the report. Header-only, so that
// the loss module links neither MPI nor NCCL.
#pragma once

#include <greyhound/core/comm/communicator.h>
#include <greyhound/loss/sums.h>

#include <cstddef>

namespace greyhound::loss {

// Adds `sums` up over the ranks, in place: ce_sum, z_sum, weight_sum, n_valid and nonfinite_rows, with the same bits on
// every rank. To be called once after the last micro-batch of a step, before reading. The error word stays the rank's
// own. Enqueued on the context's stream; host memory is summed at once.
inline void all_reduce(const Context& context, Communicator& communicator, const LossSums& sums) {
  using Data = LossSumsData;
  static_assert(offsetof(Data, z_sum) == offsetof(Data, ce_sum) + sizeof(double));
  static_assert(offsetof(Data, weight_sum) == offsetof(Data, z_sum) + sizeof(double));
  static_assert(offsetof(Data, nonfinite_rows) == offsetof(Data, n_valid) + sizeof(std::int64_t));
  char* const data = reinterpret_cast<char*>(sums.data());
  communicator.all_reduce(context, Tensor(data + offsetof(Data, ce_sum), DType::fp64, {3}, context.device()));
  communicator.all_reduce(context, Tensor(data + offsetof(Data, n_valid), DType::int64, {2}, context.device()));
}

// The valid targets of the step over all ranks, of which this rank has `valid`: the denominator of CrossEntropyOptions.
// Counted on the host, before the first backward pass of the step, and exact beyond 2^24, where fp32 sums of counts are
// not. Over a communicator that takes host memory.
inline std::int64_t all_reduce_count(Communicator& communicator, std::int64_t valid) {
  communicator.all_reduce(Context::cpu(), Tensor(&valid, DType::int64, {1}));
  return valid;
}

}  // namespace greyhound::loss
