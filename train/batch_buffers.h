// The device side of a micro-batch: tokens and targets, the denominator of the loss, and what the losses add up to.
#pragma once

#include <greyhound/core/arena.h>
#include <greyhound/core/comm/communicator.h>
#include <greyhound/loss/sums.h>
#include <greyhound/models/gpt.h>
#include <greyhound/train/loader.h>

#include <optional>

namespace greyhound {

class BatchBuffers {
 public:
  // For micro-batches of up to [rows, block_size]; region "batch".
  void plan(ArenaPlan& plan, std::int64_t rows, std::int64_t block_size);
  void bind(const Context& context, const Arena& arena);

  // Copies a micro-batch to the device.
  Batch load(const Context& context, const HostBatch& batch) const;

  // Makes denominator() the number of valid targets of all ranks, of which this rank has `valid_targets`; returns it.
  std::int64_t set_denominator(const Context& context, Communicator& communicator, std::int64_t valid_targets) const;
  Tensor denominator() const { return denominator_; }  // [1] fp32

  loss::LossSums& sums() { return *sums_; }
  // The sums over all ranks, on every rank; to be called once after the last micro-batch. Waits for the device.
  loss::Report reduce_sums(const Context& context, Communicator& communicator) const;

 private:
  struct Slots {
    ArenaPlan::Slot tokens, targets, count, denominator, sums;
  } slots_{};
  Tensor tokens_, targets_;  // [rows, block_size] int32
  Tensor count_;             // [1] int64
  Tensor denominator_;
  std::optional<loss::LossSums> sums_;
};

}  // namespace greyhound
