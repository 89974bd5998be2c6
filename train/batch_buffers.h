// The device side of a micro-batch: tokens and targets, the denominator of the loss, and what the losses add up to.
#pragma once

#include <greyhound/core/arena.h>
#include <greyhound/core/comm/communicator.h>
#include <greyhound/core/host_buffer.h>
#include <greyhound/core/stream.h>
#include <greyhound/loss/sums.h>
#include <greyhound/models/gpt.h>
#include <greyhound/train/loader.h>

#include <array>
#include <memory>
#include <optional>

namespace greyhound {

class BatchBuffers {
 public:
  // For micro-batches of up to [rows, block_size]; region "batch". On a GPU there are two of each buffer.
  void plan(const Context& context, ArenaPlan& plan, std::int64_t rows, std::int64_t block_size);
  void bind(const Context& context, const Arena& arena);

  // Micro-batches loaded from now on draw the masks of this step.
  void set_dropout(std::uint64_t seed, std::uint64_t step);

  // A micro-batch on the device, until the next but one is loaded; what work on it reads is at the same addresses every
  // second time. A GPU copies it from page-locked memory on a stream of its own, while the work on earlier ones goes
  // on: the host waits only when it is more than a few ahead.
  Batch load(const Context& context, const HostBatch& batch);

  // Makes denominator() of the micro-batches loaded from now on the number of valid targets of all ranks, of which this
  // rank has `valid_targets`; returns it. Waits for the device where there are several ranks.
  std::int64_t set_denominator(const Context& context, Communicator& communicator, std::int64_t valid_targets);
  Tensor denominator() const { return slot().denominator; }  // [1] fp32, beside the last micro-batch

  loss::LossSums& sums() { return *sums_; }
  // Enqueues adding up the sums over all ranks, on every rank; to be called once after the last micro-batch.
  void reduce_sums(const Context& context, Communicator& communicator) const;

 private:
  static constexpr int slots = 2;
  struct Slots {
    std::array<ArenaPlan::Slot, slots> tokens, targets, denominator, dropout;
    ArenaPlan::Slot count, sums;
  } slots_{};
  struct MicroBatch {
    Tensor tokens, targets;  // [rows, block_size] int32
    Tensor denominator;
    Tensor dropout;  // a DropoutOrigin
  };
  // What a GPU needs to copy ahead.
  struct Ahead {
    explicit Ahead(const Context& context, std::size_t bytes);
    Stream stream;
    HostBuffer host[slots];
    Event copied[slots];  // on the stream of copies
    Event used[slots];    // on the context's: the work on what was there has been enqueued before
  };

  const MicroBatch& slot() const { return micro_batches_[current_]; }
  void copy_ahead(const Context& context, const HostBatch& batch, const Tensor& tokens, const Tensor& targets,
                  const DropoutOrigin& origin);

  int slot_count_ = 1;
  std::array<MicroBatch, slots> micro_batches_;
  int current_ = 0;
  float denominator_ = 0;
  std::uint64_t seed_ = 0, step_ = 0;  // of dropout
  std::unique_ptr<Ahead> ahead_;       // on a GPU
  Tensor count_;                       // [1] int64
  std::optional<loss::LossSums> sums_;
};

}  // namespace greyhound
