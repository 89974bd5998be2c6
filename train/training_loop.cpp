#include <greyhound/train/training_loop.h>

#include <greyhound/core/device_info.h>
#include <greyhound/core/memory.h>
#include <greyhound/train/console.h>
#include <greyhound/train/evaluate.h>
#include <greyhound/train/generate.h>
#include <greyhound/train/gpu_peak.h>
#include <greyhound/train/number_text.h>
#include <greyhound/train/resume.h>
#include <greyhound/train/tuned_products.h>

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
                           const BatchPlan& batch, const RunStart& start, TrainingBuffers& buffers, RunData& data,
                           const StopRequest& stop)
    : context_(context),
      communicator_(communicator),
      config_(config),
      plan_(batch),
      run_dir_(start.run_dir),
      buffers_(buffers),
      data_(data),
      trainer_(context, communicator, config, batch, buffers, *data.train),
      stop_(stop) {
  const ParameterList& parameters = buffers.model.parameters();
  if (start.resumed) {
    restore_state(start.checkpoint ? &*start.checkpoint : nullptr, context, communicator, parameters, trainer_);
  } else {
    trainer_.initialize();
  }
  if (config.run.tune_products) tune_products();
  first_step_ = trainer_.steps();
  communicator_.set_timeout(static_cast<double>(config.distributed.timeout_s));
  communicator_.take_exposed_ms();  // setting up is no step's
  if (context.device().is_cuda()) {
    peak_flops_ = bf16_peak_flops(cuda_device_info(context.device().index).name).value_or(std::nan(""));
  }
  if (!communicator.is_root()) return;
  metrics_.emplace(run_dir_.metrics(), first_step_);
  if (metrics_->last_step() < first_step_) {
    spdlog::warn("{} ends at step {}, the checkpoint is of step {}", run_dir_.metrics(), metrics_->last_step(),
                 first_step_);
  }
  saver_.emplace(context, config, run_dir_, start.lock, start.info, parameters, trainer_, start.make_run_files);
}

void TrainingLoop::tune_products() {
  if (context_.device().is_cpu()) return;
  const Clock::time_point begin = Clock::now();
  load_tuned_products(context_);
  std::int64_t tuned = 0;
  try {
    tuned = trainer_.tune_products();
    context_.synchronize();
  } catch (const Error& error) {
    throw_runtime(error.what(), " (while products were timed; run.tune_products=false does without)");
  }
  if (tuned == 0 || !communicator_.is_root()) return;
  spdlog::info("products  the fastest algorithms of {} found in {:.1f} s", tuned, seconds(Clock::now() - begin));
  save_tuned_products(context_);
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
  if (saver_ && trainer_.steps() > first_step_) {  // untrained weights are not worth those of an earlier run
    metrics_->sync();
    saver_->save_now();
    metrics_->flush();  // the folder may be there again
  }
  log_end();
}

void TrainingLoop::log_start() const {
  const std::int64_t last = config_.train.max_steps;
  spdlog::info("training: {} of {}",
               first_step_ == 0 ? counted(last, "step") : fmt::format("steps {} to {}", first_step_ + 1, last),
               counted(plan_.tokens(), "token"));
}

// Lines and metrics come in the order of the steps. On a GPU a step is reported when the next one has been enqueued,
// unless something has to be done in between.
void TrainingLoop::train_one_step() {
  trainer_.start_step();
  finish_steps(pauses());
  if (due(config_.sample.every)) print_sample();
  if (saver_) save_at_interval();
}

void TrainingLoop::save_at_interval() {
  saver_->check();
  const bool at_interval = config_.checkpoint.every > 0 && trainer_.steps() % config_.checkpoint.every == 0;
  save_due_ = (save_due_ || at_interval) && !finished();
  // A run about to fail must not push its healthy checkpoints out.
  if (!save_due_ || trainer_.last_step_skipped()) return;
  save_due_ = false;
  metrics_->sync();  // the log of a checkpoint's steps lasts as well
  saver_->save();
}

void TrainingLoop::write_metrics(const StepMetrics& metrics) {
  if (!metrics_) return;
  try {
    saver_->check_folder();
    metrics_->write(metrics);
    metrics_failed_ = false;
  } catch (const Error& error) {
    if (config_.checkpoint.on_error == OnError::stop) throw;
    if (!metrics_failed_) spdlog::warn("{}; its lines wait until it can", error.what());
    metrics_failed_ = true;
  }
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
  metrics.comm_ms = communicator_.take_exposed_ms();
  if (data_.validation && due(config_.eval.every, result.step)) validate(metrics);

  write_metrics(metrics);
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
  const bool line = config_.log.every > 0 && (metrics.step == first_step_ + 1 || due(config_.log.every, metrics.step));
  if (line) {
    const double elapsed = seconds(Clock::now() - start_);
    const double left = elapsed / static_cast<double>(metrics.step - first_step_) *
                        static_cast<double>(config_.train.max_steps - metrics.step);
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

// Skipped steps and those that failed half-way left the last good weights.
void TrainingLoop::save_after_failure() noexcept {
  if (!saver_ || trainer_.steps() == first_step_) return;
  if (communicator_.failed()) {  // the weights may hold a part of what the ranks add up
    spdlog::warn("nothing is saved: a rank was lost in the middle of a step");
    return;
  }
  try {
    finish_steps(true);  // the steps before the one that failed
  } catch (...) {        // their failure, then, is the one that is thrown already, or follows from it
  }
  if (trainer_.last_step_skipped() && saver_->has_checkpoints()) return;  // the newest may be from before the trouble
  try {
    trainer_.forget_unfinished_step();
    saver_->save_now();
    spdlog::info("saved step {} in {}", trainer_.steps(), run_dir_.path());
  } catch (const std::exception& error) {
    spdlog::warn("step {} could not be saved: {}", trainer_.steps(), error.what());
  } catch (...) {
    spdlog::warn("step {} could not be saved", trainer_.steps());
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
