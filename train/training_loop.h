// The loop around the training step: evaluation, samples, logs and checkpoints at their intervals.
#pragma once

#include <greyhound/core/comm/communicator.h>
#include <greyhound/train/loader.h>
#include <greyhound/train/metrics.h>
#include <greyhound/train/run_dir.h>
#include <greyhound/train/signals.h>
#include <greyhound/train/trainer.h>

#include <chrono>
#include <memory>
#include <optional>

namespace greyhound {

class TrainingLoop {
 public:
  // On the root rank, starts metrics.jsonl in the run's folder, which exists.
  TrainingLoop(const Context& context, Communicator& communicator, const Config& config, const BatchPlan& batch,
               const RunDir& run_dir, TrainingBuffers& buffers, RunData& data);

  // Trains to the last step, or to the end of the step in which Ctrl-C or SIGTERM came; then saves the weights.
  void run();

 private:
  using Clock = std::chrono::steady_clock;

  void log_start() const;
  void train_one_step();
  void log_step(const StepMetrics& metrics, const StepResult& result);
  double validate();
  void print_sample();
  void save();
  void log_end() const;

  bool due(std::int64_t every) const;  // after the step that was just made
  bool finished() const { return trainer_.steps() >= config_.train.max_steps; }
  bool stop_agreed() const;  // some rank got a signal; asked by all of them at the same step

  Context context_;
  Communicator& communicator_;
  const Config config_;
  const BatchPlan plan_;
  const RunDir run_dir_;
  TrainingBuffers& buffers_;
  RunData& data_;
  Trainer trainer_;
  StopRequest stop_;
  std::optional<MetricsFile> metrics_;  // of the root rank

  std::optional<double> val_loss_;  // the last one
  Clock::time_point start_ = Clock::now();
  // Since the last line on the terminal.
  double seconds_since_line_ = 0;
  std::int64_t steps_since_line_ = 0;
};

}  // namespace greyhound
