// The loss on the held-out split.
#pragma once

#include <greyhound/core/comm/communicator.h>
#include <greyhound/models/gpt.h>
#include <greyhound/train/batch_buffers.h>
#include <greyhound/train/loader.h>

#include <cstdint>

namespace greyhound {

struct Evaluation {
  double loss = 0;           // mean cross-entropy over the valid targets of all ranks, without the z-loss
  std::int64_t targets = 0;  // how many
};

// No dropout, no gradients: training goes on afterwards with the same bits as without it.
Evaluation evaluate(const Context& context, Communicator& communicator, Gpt& model, Evaluator& split,
                    BatchBuffers& buffers);

}  // namespace greyhound
