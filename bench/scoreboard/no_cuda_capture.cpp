// Stands in for cuda_capture.cpp where the CUDA backend is not built.
#include "capture.h"

#include <greyhound/core/error.h>

namespace greyhound::scoreboard {

Context stream_context(bool cuda) {
  require(!cuda, "this build has no CUDA backend");
  return Context::cpu();
}

std::unique_ptr<Graph> capture(const Context&, const std::function<void()>&) {
  throw_usage("this build has no CUDA backend: nothing to capture");
}

}  // namespace greyhound::scoreboard
