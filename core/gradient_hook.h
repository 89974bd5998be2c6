// How backward tells others (communication, optimisers) that part of the gradient is final.
#pragma once

#include <cstdint>
#include <functional>

namespace greyhound {

// Elements [begin, end) of the contiguous gradient block. Backward completes ranges from the front to
// the back of the block, without gaps.
struct GradientRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Called on the host as soon as the work that completes `range` has been enqueued on the stream.
using GradientHook = std::function<void(GradientRange range)>;

}  // namespace greyhound
