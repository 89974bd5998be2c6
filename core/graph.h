// Work that is enqueued many times, captured once and from then on started as a whole.
#pragma once

#include <greyhound/core/context.h>

#include <functional>

namespace greyhound {

// On a GPU a CUDA graph: one launch instead of one for each kernel, with the arguments that the kernels had when it was
// captured. What is to differ between launches is read from memory by the kernels themselves. On the CPU there is
// nothing to capture: a launch calls the function.
class GREYHOUND_API Graph {
 public:
  Graph() = default;
  // Captures what `enqueue` enqueues on the context's stream; none of it runs yet. Throws a usage Error for the default
  // stream, which cannot be captured, and a runtime Error where `enqueue` does what a capture does not allow: allocate
  // device memory, wait for the device. Work that has run before in the same way makes no such call.
  Graph(const Context& context, std::function<void()> enqueue);
  ~Graph();
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;

  explicit operator bool() const { return executable_ != nullptr || enqueue_ != nullptr; }

  // Enqueues the work on the stream of a context of the same device. The graph has to outlive that work.
  void launch(const Context& context) const;

 private:
  Device device_;
  void* executable_ = nullptr;     // a cudaGraphExec_t
  std::function<void()> enqueue_;  // on the CPU
};

}  // namespace greyhound
