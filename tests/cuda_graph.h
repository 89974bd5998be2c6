// Calls captured in a CUDA graph. Needs the CUDA runtime.
#pragma once

#include <tests/cuda_stream.h>

#include <cstddef>
#include <string>
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
    const std::vector<cudaGraphNode_t> all = nodes();
    for (cudaGraphNode_t node : all) {
      const cudaGraphNodeType type = type_of(node);
      const bool expected = type == cudaGraphNodeTypeKernel || type == cudaGraphNodeTypeMemset ||
                            type == cudaGraphNodeTypeMemcpy || type == cudaGraphNodeTypeEmpty;
      if (!expected) return false;
    }
    return !all.empty();
  }
  // What cuobjdump calls the kernels. The runtime tells since 12.3; before, there are none. Nor are those of libraries
  // that load their kernels past the runtime.
  std::vector<std::string> kernel_names() const {
    std::vector<std::string> names;
#if CUDART_VERSION >= 12030
    if (cpu_as_device()) return names;
    for (cudaGraphNode_t node : nodes()) {
      if (type_of(node) != cudaGraphNodeTypeKernel) continue;
      cudaKernelNodeParams kernel{};
      const cudaError_t found = cudaGraphKernelNodeGetParams(node, &kernel);
      if (found == cudaErrorInvalidDeviceFunction) {
        (void)cudaGetLastError();
        continue;
      }
      cuda::check(found, "cudaGraphKernelNodeGetParams");
      const char* name = nullptr;
      cuda::check(cudaFuncGetName(&name, kernel.func), "cudaFuncGetName");
      names.emplace_back(name);
    }
#endif
    return names;
  }

 private:
  std::vector<cudaGraphNode_t> nodes() const {
    std::size_t count = 0;
    cuda::check(cudaGraphGetNodes(graph_, nullptr, &count), "cudaGraphGetNodes");
    std::vector<cudaGraphNode_t> all(count);
    cuda::check(cudaGraphGetNodes(graph_, all.data(), &count), "cudaGraphGetNodes");
    return all;
  }
  static cudaGraphNodeType type_of(cudaGraphNode_t node) {
    cudaGraphNodeType type;
    cuda::check(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
    return type;
  }

  cudaStream_t stream_;
  Enqueue enqueue_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace greyhound::test
