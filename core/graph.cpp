#include <greyhound/core/graph.h>

#include <greyhound/core/cuda_runtime.h>
#include <greyhound/core/error.h>

#include <utility>

namespace greyhound {

Graph::Graph(const Context& context, std::function<void()> enqueue) : device_(context.device()) {
  require(enqueue != nullptr, "graph: nothing to capture");
  if (device_.is_cuda()) {
    require(context.stream() != nullptr, "graph: the default stream cannot be captured; use a stream of your own");
    executable_ = cuda::capture_graph(device_.index, context.stream(), enqueue);
  } else {
    enqueue_ = std::move(enqueue);
  }
}

Graph::~Graph() {
  if (executable_ != nullptr) cuda::destroy_graph(device_.index, executable_);
}

Graph::Graph(Graph&& other) noexcept
    : device_(other.device_),
      executable_(std::exchange(other.executable_, nullptr)),
      enqueue_(std::exchange(other.enqueue_, nullptr)) {}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(executable_, other.executable_);
  std::swap(enqueue_, other.enqueue_);
  return *this;
}

void Graph::launch(const Context& context) const {
  require(static_cast<bool>(*this), "graph: nothing was captured");
  require(context.device() == device_, "graph: captured on ", to_string(device_), ", launched on ",
          to_string(context.device()));
  if (executable_ != nullptr) {
    cuda::launch_graph(device_.index, context.stream(), executable_);
  } else {
    enqueue_();
  }
}

}  // namespace greyhound
