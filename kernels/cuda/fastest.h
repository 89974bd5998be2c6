// Which of several ways to enqueue the same work is the fastest. Internal to the CUDA backend.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace greyhound::cuda {

// Times `enqueue(0)` .. `enqueue(candidates - 1)` on the stream and returns the fastest, of equals the first; -1 where
// none could be enqueued (enqueue returns false). Each is run once unmeasured and once measured. Those that are not far
// behind then run against each other, in turns that are long enough for the clock at which each can go on: a GPU at its
// power limit slows down, and not all by the same. The medians decide. Waits for the stream.
int fastest(cudaStream_t stream, int candidates, const std::function<bool(int)>& enqueue);

}  // namespace greyhound::cuda
