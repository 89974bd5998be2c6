// Cross-entropy of long rows by row_stream.cuh. Internal to the CUDA backend.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/dtype.h>

namespace greyhound::cuda {

struct CrossEntropyArguments;

// extras: entropy, argmax or label smoothing are wanted. False, with nothing enqueued, where the rows cannot be
// streamed: too short or too long, or a device older than Hopper.
bool stream_cross_entropy(const Context& context, DType dtype, const CrossEntropyArguments& args, bool extras);

}  // namespace greyhound::cuda
