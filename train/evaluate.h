// The loss on the held-out split.
#pragma once

#include <greyhound/core/comm/communicator.h>
#include <greyhound/models/gpt.h>
#include <greyhound/train/batch_buffers.h>
#include <greyhound/train/loader.h>

#include <cstdint>
#include <functional>

namespace greyhound {

struct Evaluation {
  double loss = 0;           // mean cross-entropy over the valid targets of all ranks, without the z-loss
  std::int64_t targets = 0;  // how many
  bool stopped = false;      // before the whole split was seen
};

// No dropout, no gradients: training goes on afterwards with the same bits as without it. `stop` is asked between
// batches where there is one rank; several must make the same calls, and go on to the end.
Evaluation evaluate(const Context& context, Communicator& communicator, Gpt& model, Evaluator& split,
                    BatchBuffers& buffers, const std::function<bool()>& stop = {});

}  // namespace greyhound
