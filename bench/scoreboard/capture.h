// A call captured in a CUDA graph. The CPU has no graphs: there the call simply runs.
#pragma once

#include <greyhound/core/context.h>

#include <functional>
#include <memory>

namespace greyhound::scoreboard {

// A context of this device on a stream of its own: the default stream cannot be captured. Lives as long as the program.
Context stream_context(bool cuda);

class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch() = 0;
};

// Captures what `enqueue` enqueues; throws when it does what a captured call must not: allocate, wait for the device.
std::unique_ptr<Graph> capture(const Context& context, const std::function<void()>& enqueue);

}  // namespace greyhound::scoreboard
