// Adds the ranks' gradients up, bucket by bucket, while the rest of the backward pass runs.
#pragma once

#include <greyhound/core/arena.h>
#include <greyhound/core/comm/communicator.h>
#include <greyhound/core/gradient_hook.h>
#include <greyhound/train/config.h>

#include <cstdint>

namespace greyhound {

// The gradient block is cut where ranges are complete and at least distributed.bucket_mb are waiting: the weight of an
// untied head starts its way before the blocks' backward begins, a tied one, which the embedding adds to, is in the
// last bucket. What a bucket holds does not change the sums, which are made element by element in the order of the
// ranks (on the CPU; NCCL keeps its order for a number of ranks and a size).
class GradientReducer {
 public:
  explicit GradientReducer(const Config::Distributed& settings) : settings_(settings) {}

  // The copy of the gradients that goes over the wire: region "reduction", with several ranks and bf16 only.
  void plan(ArenaPlan& plan, std::int64_t block_elements, std::int64_t ranks);
  // `gradients` [block_elements] fp32.
  void bind(const Arena& arena, const Tensor& gradients);

  // For the last micro-batch of a step; empty, for one rank, when there is nothing to add up. Context and communicator
  // must outlive the backward pass that calls it.
  GradientHook hook(const Context& context, Communicator& communicator);
  // Sends what is left and waits: afterwards the gradients are sums over the ranks. Throws when not every gradient was
  // reported through the hook.
  void finish(const Context& context, Communicator& communicator);

 private:
  void send(const Context& context, Communicator& communicator);

  Config::Distributed settings_;
  ArenaPlan::Slot wire_slot_{};
  bool planned_ = false;  // a copy in reduce_dtype
  Tensor gradients_, wire_;
  std::int64_t sent_ = 0, complete_ = 0;  // elements from the start of the block
};

}  // namespace greyhound
