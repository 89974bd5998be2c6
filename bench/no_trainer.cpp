// Stands in for step.cpp where the trainer is not built.
#include "step.h"

#include <greyhound/core/error.h>

namespace greyhound::bench {

std::string step_models() { return "none: this build has no trainer"; }

void step(const Context&, const StepOptions&, const Facts&) {
  throw_usage("this build has no trainer; configure with -DGREYHOUND_BUILD_TRAINER=ON");
}

}  // namespace greyhound::bench
