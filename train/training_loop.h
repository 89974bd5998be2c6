// The loop around the training step: evaluation, samples, logs and checkpoints at their intervals.
#pragma once

#include <greyhound/core/comm/communicator.h>
#include <greyhound/train/checkpoint_saver.h>
#include <greyhound/train/loader.h>
#include <greyhound/train/metrics.h>
#include <greyhound/train/run_dir.h>
#include <greyhound/train/signals.h>
#include <greyhound/train/trainer.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace greyhound {

// Some rank got a signal; to be asked by all of them at the same point.
bool stop_agreed(const StopRequest& stop, const Context& context, Communicator& communicator);

// How a run begins and where it is kept.
struct RunStart {
  RunDir run_dir;
  std::shared_ptr<FolderLock> lock;      // of the root rank
  CheckpointInfo info;                   // of the root rank: describe_run()
  std::function<void()> make_run_files;  // in a folder that is there or not; see CheckpointSaver
  bool resumed = false;                  // the same on every rank
  std::optional<Checkpoint> checkpoint;  // of the root rank, when resumed
};

class TrainingLoop {
 public:
  // Draws or reads the initial weights, or restores the checkpoint. On the root rank, starts metrics.jsonl in the run's
  // folder, which exists, or goes on with it.
  TrainingLoop(const Context& context, Communicator& communicator, const Config& config, const BatchPlan& batch,
               const RunStart& start, TrainingBuffers& buffers, RunData& data, const StopRequest& stop);

  // Trains to the last step, or to the end of the step in which Ctrl-C or SIGTERM came; then saves a checkpoint. When a
  // step fails, saves that of the steps before it and throws what the step threw.
  void run();

 private:
  using Clock = std::chrono::steady_clock;

  void tune_products();
  void log_start() const;
  void train_one_step();
  void write_metrics(const StepMetrics& metrics);
  void save_at_interval();
  void finish_steps(bool all);  // of those started: all, or as many as the trainer asks for
  void report(const StepResult& result);
  double flops_utilization(double tokens_per_second) const;
  std::string mfu_text(double tokens_per_second) const;  // " | mfu 45.1 %"; empty on the CPU
  void log_step(const StepMetrics& metrics, const StepResult& result);
  void validate(StepMetrics& metrics);
  void print_sample();
  void save_after_failure() noexcept;
  void log_end() const;

  bool due(std::int64_t every, std::int64_t step) const;
  bool due(std::int64_t every) const { return due(every, trainer_.steps()); }
  bool pauses() const;  // something is to be done between the step that was started last and the next
  bool finished() const { return trainer_.steps() >= config_.train.max_steps; }
  bool stop_noticed();  // this rank got a signal; says so the first time

  Context context_;
  Communicator& communicator_;
  const Config config_;
  const BatchPlan plan_;
  const RunDir run_dir_;
  TrainingBuffers& buffers_;
  RunData& data_;
  Trainer trainer_;
  const StopRequest& stop_;
  bool stop_announced_ = false;
  // Of the root rank.
  std::optional<MetricsFile> metrics_;
  std::optional<CheckpointSaver> saver_;
  bool metrics_failed_ = false;
  bool save_due_ = false;
  std::optional<double> peak_flops_;  // of this rank's GPU; NaN: unknown

  std::optional<double> val_loss_;  // the last one
  Clock::time_point start_ = Clock::now();
  std::int64_t first_step_ = 0;  // done before this start
  // Since the last line on the terminal.
  double seconds_since_line_ = 0;
  std::int64_t steps_since_line_ = 0;
};

}  // namespace greyhound
