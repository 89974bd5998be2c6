#include "capture.h"

#include <greyhound/core/cuda/cuda_check.h>
#include <greyhound/core/cuda/device_scope.h>

namespace greyhound::scoreboard {

using greyhound::cuda::check;

namespace {

class CudaGraph : public Graph {
 public:
  CudaGraph(cudaStream_t stream, const std::function<void()>& enqueue) : stream_(stream) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    try {
      enqueue();
    } catch (...) {
      (void)cudaStreamEndCapture(stream, &graph_);
      if (graph_ != nullptr) (void)cudaGraphDestroy(graph_);
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph_), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  ~CudaGraph() override {
    if (executable_ != nullptr) (void)cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) (void)cudaGraphDestroy(graph_);
  }

  void launch() override { check(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch"); }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

Context stream_context(bool cuda) {
  if (!cuda) return Context::cpu();
  const Context device = Context::cuda();
  const greyhound::cuda::DeviceScope scope(device);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return device.with_stream(stream);
}

std::unique_ptr<Graph> capture(const Context& context, const std::function<void()>& enqueue) {
  const greyhound::cuda::DeviceScope scope(context);
  return std::make_unique<CudaGraph>(greyhound::cuda::stream_of(context.stream()), enqueue);
}

}  // namespace greyhound::scoreboard
