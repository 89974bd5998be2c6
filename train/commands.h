// The program's commands. Each throws an Error when it cannot do what it was asked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace greyhound {

struct TrainOptions {
  std::string config;                  // path of a YAML file
  std::vector<std::string> overrides;  // "section.key=value"
  bool overwrite = false;              // replace a run that is in run.dir
};
void train_command(const TrainOptions& options);

// What is not given is taken from the run's own configuration.
struct SampleOptions {
  std::string run_dir;
  std::optional<std::string> prompt;
  std::optional<std::int64_t> tokens;
  std::optional<double> temperature;
  std::optional<std::int64_t> top_k;
  std::optional<std::int64_t> seed;
};
void sample_command(const SampleOptions& options);

struct EvalOptions {
  std::string run_dir;
  std::optional<std::int64_t> batches;  // 0: the whole held-out split
};
void eval_command(const EvalOptions& options);

}  // namespace greyhound
