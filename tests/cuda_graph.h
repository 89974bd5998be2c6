// Calls captured in a CUDA graph. Needs the CUDA runtime.
#pragma once

#include <tests/cuda_stream.h>

#include <cstddef>
#include <vector>

namespace greyhound::test {

// A graph of what `enqueue` enqueues on the stream. In this mode the runtime refuses what a captured call must not do:
// allocate, synchronise, use another stream.
template <class Enqueue>
class Graph {
 public:
  Graph(cudaStream_t stream, Enqueue&& enqueue) : stream_(stream), enqueue_(enqueue) {
    if (cpu_as_device()) return;
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    enqueue();
    cuda::check(cudaStreamEndCapture(stream, &graph_), "cudaStreamEndCapture");
    cuda::check(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  ~Graph() {
    if (executable_ != nullptr) (void)cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) (void)cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch() {
    if (cpu_as_device()) return enqueue_();
    cuda::check(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch");
  }
  // Kernels, fills and copies; nothing that allocates or runs on the host.
  bool only_device_work() const {
    if (cpu_as_device()) return true;
    std::size_t count = 0;
    cuda::check(cudaGraphGetNodes(graph_, nullptr, &count), "cudaGraphGetNodes");
    std::vector<cudaGraphNode_t> nodes(count);
    cuda::check(cudaGraphGetNodes(graph_, nodes.data(), &count), "cudaGraphGetNodes");
    for (cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type;
      cuda::check(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
      const bool expected = type == cudaGraphNodeTypeKernel || type == cudaGraphNodeTypeMemset ||
                            type == cudaGraphNodeTypeMemcpy || type == cudaGraphNodeTypeEmpty;
      if (!expected) return false;
    }
    return count > 0;
  }

 private:
  cudaStream_t stream_;
  Enqueue enqueue_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace greyhound::test
