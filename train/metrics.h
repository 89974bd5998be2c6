// metrics.jsonl: one JSON object a line and step, for programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace greyhound {

// What is known of a step when it is done. `step` counts from 1: steps finished so far.
struct StepMetrics {
  std::int64_t step = 0;
  std::int64_t tokens = 0;  // trained on since the start, over all ranks
  double epoch = 0;
  double loss = 0;               // mean cross-entropy over the step's targets on all ranks, without the z-loss
  std::optional<double> z_loss;  // its mean contribution, where loss.z_loss_multiplier is not 0
  double lr = 0;
  double grad_norm = 0;          // before clipping
  double tokens_per_second = 0;  // of this step, over all ranks
  double step_ms = 0;
  std::optional<double> mfu;  // on GPUs: the fraction of their bf16 peak that the model's operations took; NaN: unknown
  std::int64_t skipped_steps = 0;  // steps skipped so far because the gradient was not finite
  std::int64_t ranks = 1;
  double comm_ms = 0;              // since the line before, for which rank 0 waited for other ranks and their data
  std::optional<double> val_loss;  // where the held-out split was evaluated after this step
};

// The object without a line end. Numbers have the digits that restore them to the bit; what is not finite is null.
std::string to_json(const StepMetrics& metrics);

// Every line is written to the file at once, so that a reader and a crash find whole lines.
class MetricsFile {
 public:
  // Starts an empty file, or goes on after the line of step `after_step` of the one that is there: later lines, of
  // steps that a crash undid, are removed. Where the file has lines of something else, a copy stays beside it, with
  // ".old" at its name's end. Throws a runtime Error that names the path.
  explicit MetricsFile(const std::string& path, std::int64_t after_step = 0);
  MetricsFile(const MetricsFile&) = delete;
  ~MetricsFile();

  // The step of the last line that was there; 0 without one.
  std::int64_t last_step() const { return last_step_; }

  // A line that cannot be written is kept, and comes before the next one: the file has each step once, in order. Throws
  // a runtime Error meanwhile. When the file was removed it is made again.
  void write(const StepMetrics& metrics);
  // Writes lines that could not be written before; throws as write() does.
  void flush();
  // What was written so far lasts.
  void sync() const;

 private:
  void open(int flags);
  void cut_after(std::int64_t step);

  std::string path_;
  int descriptor_ = -1;
  std::int64_t last_step_ = 0;
  std::string pending_;
};

}  // namespace greyhound
