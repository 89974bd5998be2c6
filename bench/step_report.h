// The figures of a training step, for people and as JSON.
#pragma once

#include "step_floor.h"
#include "step_parts.h"

#include <string>
#include <vector>

namespace greyhound::bench {

struct StepReport {
  std::string model, device, precision, recompute;
  std::int64_t ranks = 1, micro_batch = 0, block = 0, accumulation = 0, parameters = 0;
  std::int64_t tuned_products = 0;  // matrix products whose algorithms were timed before
  bool graphs = false;            // the micro-batches of a timed step were CUDA graphs; those of an observed one never
  std::int64_t memory_bytes = 0;  // of the plan
  std::int64_t resident_bytes = 0;  // the most that the process had in memory; 0: not a CPU's
  double milliseconds = 0;          // of a step: the median
  double milliseconds_p10 = 0, milliseconds_p90 = 0;
  int steps = 0;                     // timed
  double tokens_per_second = 0;      // of all timed steps together, by the clock on the wall
  double flops_per_token = 0;        // of the model, forward and backward
  double peak_flops = 0;             // of the GPU; 0: a CPU or unknown
  double observed_milliseconds = 0;  // of a step whose parts were timed: the mean, as theirs
  DeviceRates rates;
  std::vector<StepPart> parts;

  double parts_milliseconds() const {
    double sum = 0;
    for (const StepPart& part : parts) sum += part.milliseconds;
    return sum;
  }
  double tokens() const { return static_cast<double>(micro_batch * block * accumulation * ranks); }
};

void print(const StepReport& report);
void write_step(const std::string& path, const StepReport& report);

}  // namespace greyhound::bench
