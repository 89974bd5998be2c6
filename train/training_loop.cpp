#include <greyhound/train/training_loop.h>

#include <greyhound/core/device_info.h>
#include <greyhound/core/memory.h>
#include <greyhound/train/checkpoint.h>
#include <greyhound/train/console.h>
#include <greyhound/train/evaluate.h>
#include <greyhound/train/generate.h>
#include <greyhound/train/gpu_peak.h>
#include <greyhound/train/number_text.h>

#include <cmath>

namespace greyhound {

namespace {

double seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

bool stop_agreed(const StopRequest& stop, const Context& context, Communicator& communicator) {
  std::int64_t requested = stop.requested() ? 1 : 0;
  if (communicator.size() > 1) {
    communicator.all_reduce(context, Tensor(&requested, DType::int64, {1}), ReduceOp::max);
  }
  return requested != 0;
}

TrainingLoop::TrainingLoop(const Context& context, Communicator& communicator, const Config& config,
                           const BatchPlan& batch, const RunDir& run_dir, TrainingBuffers& buffers, RunData& data,
                           const StopRequest& stop)
    : context_(context),
      communicator_(communicator),
      config_(config),
      plan_(batch),
      run_dir_(run_dir),
      buffers_(buffers),
      data_(data),
      trainer_(context, communicator, config, batch, buffers, *data.train),
      stop_(stop) {
  if (communicator.is_root()) metrics_.emplace(run_dir.metrics());
  if (context.device().is_cuda()) {
    peak_flops_ = bf16_peak_flops(cuda_device_info(context.device().index).name).value_or(std::nan(""));
  }
}

void TrainingLoop::run() {
  log_start();
  start_ = Clock::now();
  try {
    while (!finished() && !stop_agreed(stop_, context_, communicator_)) train_one_step();
    finish_steps(true);
  } catch (...) {
    save_after_failure();
    throw;
  }
  if (trainer_.steps() > 0) save();  // untrained weights are not worth those of an earlier run
  log_end();
}

void TrainingLoop::log_start() const {
  spdlog::info("training: {} of {}", counted(config_.train.max_steps, "step"), counted(plan_.tokens(), "token"));
}

// Lines and metrics come in the order of the steps. On a GPU a step is reported when the next one has been enqueued,
// unless something has to be done in between.
void TrainingLoop::train_one_step() {
  trainer_.start_step();
  finish_steps(pauses());
  if (due(config_.sample.every)) print_sample();
  if (config_.checkpoint.every > 0 && trainer_.steps() % config_.checkpoint.every == 0 && !finished()) save();
}

void TrainingLoop::finish_steps(bool all) {
  while (trainer_.pending() > 0 && (all || trainer_.must_finish())) report(trainer_.finish_step());
}

bool TrainingLoop::pauses() const {
  const std::int64_t save = config_.checkpoint.every;
  return finished() || (data_.validation && due(config_.eval.every)) || due(config_.sample.every) ||
         (save > 0 && trainer_.steps() % save == 0);
}

void TrainingLoop::report(const StepResult& result) {
  seconds_since_line_ += result.seconds;
  ++steps_since_line_;

  StepMetrics metrics;
  metrics.step = result.step;
  metrics.tokens = result.tokens;
  metrics.epoch = result.epoch;
  metrics.loss = result.loss;
  metrics.z_loss = result.z_loss;
  metrics.lr = result.lr;
  metrics.grad_norm = result.grad_norm;
  metrics.step_ms = result.seconds * 1e3;
  metrics.tokens_per_second = static_cast<double>(plan_.tokens()) / result.seconds;
  if (peak_flops_) metrics.mfu = flops_utilization(metrics.tokens_per_second);
  metrics.skipped_steps = result.skipped_steps;
  metrics.ranks = communicator_.size();
  if (data_.validation && due(config_.eval.every, result.step)) validate(metrics);

  if (metrics_) metrics_->write(metrics);
  log_step(metrics, result);
  trainer_.check_progress();
}

// Of the peak of all ranks' GPUs; NaN where that is unknown.
double TrainingLoop::flops_utilization(double tokens_per_second) const {
  const double flops = buffers_.model.flops_per_token(plan_.block_size) * tokens_per_second;
  return flops / (*peak_flops_ * static_cast<double>(communicator_.size()));
}

bool TrainingLoop::due(std::int64_t every, std::int64_t step) const {
  return every > 0 && (step % every == 0 || step >= config_.train.max_steps);
}

bool TrainingLoop::stop_noticed() {
  if (!stop_.requested()) return false;
  if (!stop_announced_) spdlog::warn("stopping after this step; Ctrl-C again ends at once");
  stop_announced_ = true;
  return true;
}

std::string TrainingLoop::mfu_text(double tokens_per_second) const {
  if (!peak_flops_) return "";
  const double mfu = flops_utilization(tokens_per_second);
  return std::isnan(mfu) ? " | mfu n/a" : fmt::format(" | mfu {:.1f} %", 100 * mfu);
}

void TrainingLoop::log_step(const StepMetrics& metrics, const StepResult& result) {
  if (result.skipped) {
    spdlog::warn("step {}: the gradient is not finite (norm {}, {} targets with a non-finite loss); step skipped",
                 metrics.step, result.grad_norm, result.nonfinite_targets);
  }
  const std::size_t width = std::to_string(config_.train.max_steps).size();
  const std::string step = fmt::format("step {:>{}}/{}", metrics.step, width, config_.train.max_steps);
  const bool line = config_.log.every > 0 && (metrics.step == 1 || due(config_.log.every, metrics.step));
  if (line) {
    const double elapsed = seconds(Clock::now() - start_);
    const double left =
        elapsed / static_cast<double>(metrics.step) * static_cast<double>(config_.train.max_steps - metrics.step);
    const double rate = static_cast<double>(plan_.tokens() * steps_since_line_) / seconds_since_line_;
    spdlog::info("{} | loss {:7.4f} | lr {:.2e} | norm {:6.3f} | {:>5} tok/s{} | {} left", step, metrics.loss,
                 metrics.lr, metrics.grad_norm, short_number(rate), mfu_text(rate), duration(left));
    seconds_since_line_ = 0;
    steps_since_line_ = 0;
  }
  if (metrics.val_loss) spdlog::info("{} | validation loss {:.4f}", step, *metrics.val_loss);
}

void TrainingLoop::validate(StepMetrics& metrics) {
  const Evaluation result = evaluate(context_, communicator_, buffers_.model, *data_.validation, buffers_.batch,
                                     [this] { return stop_noticed(); });
  if (result.stopped) return;  // the loss of a part would not compare with others
  metrics.val_loss = val_loss_ = result.loss;
}

void TrainingLoop::print_sample() {
  if (!communicator_.is_root()) return;
  GenerationOptions options;
  options.sampling = {config_.sample.temperature, config_.sample.top_k};
  options.tokens = config_.sample.tokens;
  options.seed = static_cast<std::uint64_t>(config_.run.seed);
  options.stream = static_cast<std::uint64_t>(trainer_.steps());
  options.stop = [this] { return stop_noticed(); };
  std::string text;
  try {
    generate_text(context_, buffers_.model, data_.tokenizer, config_.sample.prompt, options,
                  [&](const std::string& piece) { text += piece; });
  } catch (const Error& error) {
    spdlog::warn("no sample after step {}: {}", trainer_.steps(), error.what());  // training may still recover
    return;
  }
  spdlog::info("---- sample after step {} ----\n{}\n----", trainer_.steps(), text);
}

void TrainingLoop::save() {
  if (!communicator_.is_root()) return;
  save_weights(run_dir_.weights(), context_, buffers_.model.parameters(), buffers_.optimizer.weights(),
               trainer_.steps());
}

// Skipped steps and those that failed half-way left the last good weights.
void TrainingLoop::save_after_failure() noexcept {
  if (trainer_.steps() == 0) return;
  try {
    finish_steps(true);  // the steps before the one that failed
  } catch (...) {        // their failure, then, is the one that is thrown already, or follows from it
  }
  try {
    save();
    spdlog::info("saved the weights of step {} in {}", trainer_.steps(), run_dir_.weights());
  } catch (const std::exception& error) {
    spdlog::warn("the weights of step {} could not be saved: {}", trainer_.steps(), error.what());
  } catch (...) {
    spdlog::warn("the weights of step {} could not be saved", trainer_.steps());
  }
}

void TrainingLoop::log_end() const {
  if (!finished()) {
    spdlog::info("stopped by {} after step {} of {}", stop_.requested() ? stop_.signal_name() : "another rank",
                 trainer_.steps(), config_.train.max_steps);
  }
  spdlog::info("done: {} in {}{}", counted(trainer_.tokens(), "token"), duration(seconds(Clock::now() - start_)),
               trainer_.skipped_steps() > 0 ? ", " + counted(trainer_.skipped_steps(), "step") + " skipped" : "");
  if (val_loss_) spdlog::info("validation loss {:.4f}", *val_loss_);
  spdlog::info("wrote {}", fmt::join(run_dir_.existing(), ", "));
}

}  // namespace greyhound
