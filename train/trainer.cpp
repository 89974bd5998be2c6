#include <greyhound/train/trainer.h>

#include <greyhound/train/gpt2_import.h>
#include <greyhound/train/schedule.h>

#include <cmath>

namespace greyhound {

namespace {

constexpr std::int64_t most_skips_in_a_row = 3;

}  // namespace

Trainer::Trainer(const Context& context, Communicator& communicator, const Config& config, const BatchPlan& batch,
                 TrainingBuffers& buffers, Loader& loader)
    : context_(context),
      communicator_(communicator),
      config_(config),
      plan_(batch),
      buffers_(buffers),
      loader_(loader) {}

void Trainer::initialize() {
  const OptimizerState& optimizer = buffers_.optimizer;
  initialize_weights(context_, config_, buffers_.model.parameters(), optimizer.weights());
  communicator_.broadcast(context_, optimizer.weights());  // hosts may round otherwise
  optimizer.refresh_working_weights(context_);
}

StepResult Trainer::step() {
  compute_gradients();
  return apply_gradients();
}

void Trainer::compute_gradients() {
  const HostBatch rows = loader_.next();
  // Known before the first backward pass, so that every gradient is final where it is produced.
  valid_targets_ = buffers_.batch.set_denominator(context_, communicator_, rows.valid_targets);

  StepInfo step;
  step.seed = static_cast<std::uint64_t>(config_.run.seed);
  step.step = static_cast<std::uint64_t>(steps_);
  step.denominator = buffers_.batch.denominator();
  loss::LossSums& sums = buffers_.batch.sums();
  sums.reset(context_);
  for (std::int64_t index = 0; index < plan_.accumulation; ++index) {
    const Batch batch = buffers_.batch.load(context_, rows.slice(index * plan_.micro_batch, plan_.micro_batch));
    step.first_micro_batch = index == 0;
    if (index + 1 == plan_.accumulation) step.gradient_complete = buffers_.reducer.hook(context_, communicator_);
    buffers_.model.forward_backward(context_, batch, step, sums);
  }
  buffers_.reducer.finish(context_, communicator_);
}

StepResult Trainer::apply_gradients() {
  StepResult result;
  result.lr = learning_rate(config_.schedule, config_.optimizer.lr, steps_, config_.train.max_steps);
  result.grad_norm = buffers_.optimizer.update(context_, result.lr);
  result.skipped = !std::isfinite(result.grad_norm);

  const loss::Report report = buffers_.batch.reduce_sums(context_, communicator_);
  communicator_.check();
  result.loss = report.mean_ce();
  if (config_.loss.z_loss_multiplier > 0) {
    const double multiplier = config_.loss.z_loss_multiplier;
    result.z_loss = report.weight_sum > 0 ? multiplier * report.z_sum / report.weight_sum : 0;
  }
  result.valid_targets = valid_targets_;
  result.nonfinite_targets = report.nonfinite_rows;

  ++steps_;
  skipped_steps_ += result.skipped ? 1 : 0;
  skipped_in_a_row_ = result.skipped ? skipped_in_a_row_ + 1 : 0;
  return result;
}

void Trainer::check_progress() const {
  if (skipped_in_a_row_ < most_skips_in_a_row) return;
  throw_runtime("the gradient was not finite in ", skipped_in_a_row_, " steps in a row, the last of which was step ",
                steps_, "; the first such tensor is ", buffers_.optimizer.nonfinite_gradient(context_),
                "; a smaller optimizer.lr, more schedule.warmup_steps or an optimizer.grad_clip may help");
}

std::int64_t Trainer::tokens() const { return steps_ * plan_.tokens(); }

void Trainer::visit_state(StateVisitor& visitor) {
  buffers_.optimizer.visit_state(visitor);
  buffers_.optimizer.refresh_working_weights(context_);  // when the visitor replaced the weights
  loader_.visit_state(visitor);
  visitor.integer("trainer.steps", steps_);
  visitor.integer("trainer.skipped_steps", skipped_steps_);
  visitor.integer("trainer.skipped_in_a_row", skipped_in_a_row_);
}

}  // namespace greyhound
