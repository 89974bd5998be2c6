#include <greyhound/train/trainer.h>

#include <greyhound/kernels/matmul_choices.h>
#include <greyhound/train/gpt2_import.h>
#include <greyhound/train/schedule.h>

#include <algorithm>
#include <cmath>
#include <string>

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
      loader_(loader),
      graphs_wanted_(config.run.cuda_graphs),
      readback_(context) {}

void Trainer::initialize() {
  const OptimizerState& optimizer = buffers_.optimizer;
  initialize_weights(context_, config_, buffers_.model.parameters(), optimizer.weights());
  communicator_.broadcast(context_, optimizer.weights());  // hosts may round otherwise
  optimizer.refresh_working_weights(context_);
}

std::int64_t Trainer::tune_products() {
  if (context_.device().is_cpu()) return 0;
  const auto choices = [&] {
    const std::string text = save_matmul_choices(context_);
    return std::count(text.begin(), text.end(), '\n');
  };
  const std::int64_t before = choices();
  const HostBatch rows = loader_.next();
  loader_.go_to(steps_);
  buffers_.batch.set_denominator(context_, communicator_, rows.valid_targets);
  StepInfo step = begin_micro_batches();
  // Without a target the gradients are zeros, whose products say nothing.
  for (std::int64_t index = 0; index < plan_.accumulation; ++index) {
    const HostBatch micro = rows.slice(index * plan_.micro_batch, plan_.micro_batch);
    if (micro.valid_targets == 0) continue;
    const Batch batch = buffers_.batch.load(context_, micro);
    step.denominator = buffers_.batch.denominator();
    const TuneMatmuls tuning(context_);
    buffers_.model.forward_backward(context_, batch, step, buffers_.batch.sums());
    break;
  }
  return choices() - before;
}

StepResult Trainer::step() {
  start_step();
  return finish_step();
}

void Trainer::start_step() {
  compute_gradients();
  enqueue_update();
}

StepResult Trainer::apply_gradients() {
  enqueue_update();
  return finish_step();
}

StepInfo Trainer::begin_micro_batches() {
  StepInfo step;
  step.seed = static_cast<std::uint64_t>(config_.run.seed);
  step.step = static_cast<std::uint64_t>(steps_);
  buffers_.batch.set_dropout(step.seed, step.step);
  buffers_.batch.sums().reset(context_);
  return step;
}

void Trainer::compute_gradients() {
  readback_.begin(context_);
  const HostBatch rows = loader_.next();
  StepResult& known = known_[pending()];
  known = {};
  // Known before the first backward pass, so that every gradient is final where it is produced.
  known.valid_targets = buffers_.batch.set_denominator(context_, communicator_, rows.valid_targets);

  StepInfo step = begin_micro_batches();
  for (std::int64_t index = 0; index < plan_.accumulation; ++index) {
    const Batch batch = buffers_.batch.load(context_, rows.slice(index * plan_.micro_batch, plan_.micro_batch));
    step.denominator = buffers_.batch.denominator();
    step.first_micro_batch = index == 0;
    if (index + 1 == plan_.accumulation) step.gradient_complete = buffers_.reducer.hook(context_, communicator_);
    enqueue_micro_batch(batch, step);
  }
  buffers_.reducer.finish(context_, communicator_);
}

// A graph holds the addresses of its micro-batch's buffers and whether gradients are overwritten; everything else that
// changes from step to step lies in those buffers. Every micro-batch of a run has the same rows. Where ranks add
// gradients up, the last of a step talks to the others while its work is enqueued: it has no graph.
void Trainer::enqueue_micro_batch(const Batch& batch, const StepInfo& step) {
  const auto enqueue = [&] { buffers_.model.forward_backward(context_, batch, step, buffers_.batch.sums()); };
  const bool capturable = context_.device().is_cuda() && context_.stream() != nullptr && !step.gradient_complete;
  if (!graphs_wanted_ || !capturable) return enqueue();
  MicroBatchWork& work = micro_batch_work_[{batch.tokens.data, step.first_micro_batch}];
  if (!work.has_run) {
    enqueue();
    work.has_run = true;
    return;
  }
  if (!work.graph) work.graph = Graph(context_, enqueue);
  work.graph.launch(context_);
  ++graph_launches_;
}

void Trainer::enqueue_update() {
  StepResult& known = known_[pending()];
  known.lr = learning_rate(config_.schedule, config_.optimizer.lr, steps_, config_.train.max_steps);
  buffers_.optimizer.update(context_, known.lr);
  buffers_.batch.reduce_sums(context_, communicator_);
  ++steps_;
  known.step = steps_;
  known.tokens = tokens();
  known.epoch = epoch();
  readback_.end(context_, buffers_.batch.sums(), buffers_.optimizer.norm());
}

StepResult Trainer::finish_step() {
  StepResult result = known_[0];
  std::copy(known_.begin() + 1, known_.end(), known_.begin());
  const StepReadback::Values values = readback_.take();
  communicator_.check();
  result.seconds = values.seconds;
  result.grad_norm = values.grad_norm;
  result.skipped = !std::isfinite(result.grad_norm);
  result.loss = values.report.mean_ce();
  if (config_.loss.z_loss_multiplier > 0) {
    const double multiplier = config_.loss.z_loss_multiplier;
    result.z_loss = values.report.weight_sum > 0 ? multiplier * values.report.z_sum / values.report.weight_sum : 0;
  }
  result.nonfinite_targets = values.report.nonfinite_rows;

  skipped_steps_ += result.skipped ? 1 : 0;
  skipped_in_a_row_ = result.skipped ? skipped_in_a_row_ + 1 : 0;
  result.skipped_steps = skipped_steps_;
  return result;
}

bool Trainer::must_finish() const {
  const int ahead = context_.device().is_cuda() && skipped_in_a_row_ == 0 ? StepReadback::capacity - 1 : 0;
  return pending() > ahead;
}

void Trainer::check_progress() const {
  if (skipped_in_a_row_ < most_skips_in_a_row) return;
  throw_runtime("the gradient was not finite in ", skipped_in_a_row_, " steps in a row, the last of which was step ",
                steps_, "; the first such tensor is ", buffers_.optimizer.nonfinite_gradient(context_),
                "; a smaller optimizer.lr, more schedule.warmup_steps or an optimizer.grad_clip may help");
}

std::int64_t Trainer::tokens() const { return steps_ * plan_.tokens(); }

void Trainer::visit_state(StateVisitor& visitor) {
  require(pending() == 0, "trainer: ", pending(), " steps are not finished");
  buffers_.optimizer.visit_state(visitor);
  buffers_.optimizer.refresh_working_weights(context_);  // when the visitor replaced the weights
  loader_.visit_state(visitor);
  visitor.integer("trainer.steps", steps_);
  visitor.integer("trainer.skipped_steps", skipped_steps_);
  visitor.integer("trainer.skipped_in_a_row", skipped_in_a_row_);
}

}  // namespace greyhound
