// A whole training step of a model, and what its parts take.
#pragma once

#include "timing.h"

#include <cstdint>
#include <string>

namespace greyhound::bench {

struct StepOptions {
  std::string model = "toy";  // a name of step_models()
  // What is not given is the model's.
  std::int64_t micro_batch = 0, block = 0, accumulation = 0;
  std::string recompute, precision;
  bool tuned = false;   // as run.tune_products, anew
  bool graphs = true;   // as run.cuda_graphs, for the step as a whole
  double seconds = 10;  // of timed steps, about
  std::string json;     // where to write the figures; empty: nowhere
};

// "toy, 124m, ...".
std::string step_models();

// Prints the memory plan, the step as a whole, and the table of its parts; writes them to options.json, with `facts` in
// the file beside it. What is measured: README.md beside this file.
void step(const Context& context, const StepOptions& options, const Facts& facts);

}  // namespace greyhound::bench
