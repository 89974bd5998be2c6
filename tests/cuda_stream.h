// A stream of a test's own. Needs the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>
#include <greyhound/core/cuda/cuda_check.h>
#include <tests/backend.h>

namespace greyhound::test {

// It does not wait for the default stream. Where the CPU stands in for a device there is none.
class Stream {
 public:
  Stream() {
    if (!cpu_as_device()) cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~Stream() {
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace greyhound::test
