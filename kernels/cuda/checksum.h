// Whether two matrices have the same bits, without keeping the first. Internal to the CUDA backend.
#pragma once

#include <greyhound/core/tensor.h>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace greyhound::cuda {

// A number that follows from the bits of a matrix of fp32, bf16 or fp16 alone; others give another but for one chance
// in 2^64. `scratch`: 8 bytes on the device, aligned to them. Waits for the stream.
std::uint64_t checksum(cudaStream_t stream, const ConstTensor& matrix, void* scratch);

}  // namespace greyhound::cuda
