// Stands in for cuda_device.cpp where the CUDA backend is not built. Never called: no context is on a GPU then.
#include "timing.h"

#include <greyhound/core/error.h>

namespace greyhound::bench::cuda {

std::vector<std::vector<double>> time_in_turn(const Context&, const std::vector<const Work*>&, int) {
  throw_usage("this build has no CUDA backend");
}

Facts device_facts(const Context&) { throw_usage("this build has no CUDA backend"); }

}  // namespace greyhound::bench::cuda
