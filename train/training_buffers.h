// All memory of a training run on one device: planned as a whole, then allocated once.
#pragma once

#include <greyhound/core/arena.h>
#include <greyhound/models/gpt.h>
#include <greyhound/train/batch_buffers.h>
#include <greyhound/train/config.h>
#include <greyhound/train/gradient_reducer.h>
#include <greyhound/train/optimizer_state.h>

#include <cstdint>

namespace greyhound {

class TrainingBuffers {
 public:
  // Plans one rank's memory for micro-batches of `micro_batch` rows; allocates nothing, whatever the sizes.
  // config.model.vocab_size must be the real one. Throws a usage Error when the configuration is inconsistent.
  TrainingBuffers(const Context& context, const Config& config, std::int64_t micro_batch, std::int64_t ranks = 1);

  const ArenaPlan& plan() const { return plan_; }
  // Makes the arena and tells the parts where their buffers are.
  void allocate(const Context& context);

  Gpt model;
  OptimizerState optimizer;
  BatchBuffers batch;
  GradientReducer reducer;

 private:
  ArenaPlan plan_;
  Arena arena_;
};

}  // namespace greyhound
