// The learning rate of each step.
#pragma once

#include <greyhound/train/config.h>

#include <cstdint>

namespace greyhound {

// Learning rate of step `step` (0 for the first) of `max_steps`. Linear warm-up: (step + 1) / warmup_steps of `peak`,
// so that the first step is not lost and the last warm-up step is at the peak; without warm-up step 0 is. From there to
// the last step a cosine or a line falls to peak * final_lr_fraction; `constant` stays at the peak. Steps past the end
// keep the last value.
double learning_rate(const Config::Schedule& schedule, double peak, std::int64_t step, std::int64_t max_steps);

}  // namespace greyhound
