#include <greyhound/train/training_loop.h>

#include <greyhound/core/memory.h>
#include <greyhound/train/checkpoint.h>
#include <greyhound/train/console.h>
#include <greyhound/train/evaluate.h>
#include <greyhound/train/generate.h>
#include <greyhound/train/number_text.h>

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
}

void TrainingLoop::run() {
  log_start();
  start_ = Clock::now();
  try {
    while (!finished() && !stop_agreed(stop_, context_, communicator_)) train_one_step();
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

void TrainingLoop::train_one_step() {
  const Clock::time_point begin = Clock::now();
  const StepResult result = trainer_.step();
  const double time = seconds(Clock::now() - begin);
  seconds_since_line_ += time;
  ++steps_since_line_;

  StepMetrics metrics;
  metrics.step = trainer_.steps();
  metrics.tokens = trainer_.tokens();
  metrics.epoch = trainer_.epoch();
  metrics.loss = result.loss;
  metrics.z_loss = result.z_loss;
  metrics.lr = result.lr;
  metrics.grad_norm = result.grad_norm;
  metrics.step_ms = time * 1e3;
  metrics.tokens_per_second = static_cast<double>(plan_.tokens()) / time;
  metrics.skipped_steps = trainer_.skipped_steps();
  metrics.ranks = communicator_.size();
  if (data_.validation && due(config_.eval.every)) validate(metrics);

  if (metrics_) metrics_->write(metrics);
  log_step(metrics, result);
  trainer_.check_progress();
  if (due(config_.sample.every)) print_sample();
  if (config_.checkpoint.every > 0 && trainer_.steps() % config_.checkpoint.every == 0 && !finished()) save();
}

bool TrainingLoop::due(std::int64_t every) const { return every > 0 && (trainer_.steps() % every == 0 || finished()); }

bool TrainingLoop::stop_noticed() {
  if (!stop_.requested()) return false;
  if (!stop_announced_) spdlog::warn("stopping after this step; Ctrl-C again ends at once");
  stop_announced_ = true;
  return true;
}

void TrainingLoop::log_step(const StepMetrics& metrics, const StepResult& result) {
  if (result.skipped) {
    spdlog::warn("step {}: the gradient is not finite (norm {}, {} targets with a non-finite loss); step skipped",
                 metrics.step, result.grad_norm, result.nonfinite_targets);
  }
  const std::size_t width = std::to_string(config_.train.max_steps).size();
  const std::string step = fmt::format("step {:>{}}/{}", metrics.step, width, config_.train.max_steps);
  const bool line = config_.log.every > 0 && (metrics.step == 1 || due(config_.log.every));
  if (line) {
    const double elapsed = seconds(Clock::now() - start_);
    const double left =
        elapsed / static_cast<double>(metrics.step) * static_cast<double>(config_.train.max_steps - metrics.step);
    const double rate = static_cast<double>(plan_.tokens() * steps_since_line_) / seconds_since_line_;
    spdlog::info("{} | loss {:7.4f} | lr {:.2e} | norm {:6.3f} | {:>5} tok/s | {} left", step, metrics.loss, metrics.lr,
                 metrics.grad_norm, short_number(rate), duration(left));
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
