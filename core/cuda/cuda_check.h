// Checks of CUDA calls: a failure throws with the runtime's own text. Of the CUDA backend; loss/row_loss.cuh needs it.
#pragma once

#include <greyhound/core/error.h>

#include <cuda_runtime_api.h>

namespace greyhound::cuda {

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw_runtime("CUDA: ", what, ": ", cudaGetErrorName(status), ": ", cudaGetErrorString(status));
}

// After a kernel launch: reports a bad launch configuration. Never synchronises.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

inline cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace greyhound::cuda
