#include <greyhound/train/optimizer_state.h>

#include <greyhound/core/memory.h>
#include <greyhound/kernels/elementwise.h>

#include <algorithm>
#include <cmath>

namespace greyhound {

OptimizerState::OptimizerState(const ParameterList& parameters, DType precision, const Config::Optimizer& settings)
    : parameters_(parameters),
      precision_(precision),
      settings_(settings),
      decay_ranges_(parameters.decay_ranges(static_cast<float>(settings.weight_decay))) {}

void OptimizerState::plan(const Context& context, ArenaPlan& plan) {
  const Shape block = {parameters_.block_elements()};
  slots_.weights = plan.add("parameters", "weights", DType::fp32, block);
  if (precision_ != DType::fp32) {
    slots_.working_weights = plan.add("working weights", "working_weights", precision_, block);
  }
  slots_.gradients = plan.add("gradients", "gradients", DType::fp32, block);
  slots_.m = plan.add("optimiser", "m", DType::fp32, block);
  slots_.v = plan.add("optimiser", "v", DType::fp32, block);
  slots_.norm = plan.add("optimiser", "gradient_norm", DType::fp32, {1});
  slots_.steps_taken = plan.add("optimiser", "steps_taken", DType::int64, {1});
  const std::size_t bytes = gradient_norm_workspace_bytes(context, parameters_.block_elements());
  slots_.workspace = plan.add("optimiser", "gradient_norm_workspace", DType::uint8, {static_cast<std::int64_t>(bytes)});
}

void OptimizerState::bind(const Arena& arena) {
  weights_ = arena[slots_.weights];
  if (precision_ != DType::fp32) working_weights_ = arena[slots_.working_weights];
  gradients_ = arena[slots_.gradients];
  m_ = arena[slots_.m];
  v_ = arena[slots_.v];
  norm_ = arena[slots_.norm];
  steps_taken_ = arena[slots_.steps_taken];
  workspace_ = Workspace(arena[slots_.workspace]);
}

void OptimizerState::refresh_working_weights(const Context& context) const {
  if (working_weights_) cast(context, {weights_, working_weights_});
}

void OptimizerState::update(const Context& context, double lr) {
  gradient_norm(context, {gradients_, norm_}, workspace_);
  AdamW args;
  args.weights = weights_;
  args.working_weights = working_weights_;
  args.grads = gradients_;
  args.m = m_;
  args.v = v_;
  args.norm = norm_;
  args.steps_taken = steps_taken_;
  args.ranges = decay_ranges_.data();
  args.range_count = static_cast<std::int64_t>(decay_ranges_.size());
  args.lr = static_cast<float>(lr);
  args.beta1 = static_cast<float>(settings_.beta1);
  args.beta2 = static_cast<float>(settings_.beta2);
  args.eps = static_cast<float>(settings_.eps);
  args.grad_clip = static_cast<float>(settings_.grad_clip);
  adamw(context, args);
}

std::int64_t OptimizerState::updates(const Context& context) const {
  std::int64_t steps = 0;
  copy_bytes(context, &steps, Device::cpu(), steps_taken_.data, steps_taken_.device, sizeof steps);
  context.synchronize();
  return steps;
}

std::string OptimizerState::nonfinite_gradient(const Context& context) const {
  std::vector<float> host;
  // The block goes from the model's output to its input, as a NaN spreads in backward: the first hit is nearest to
  // where it came from.
  for (const Parameter& parameter : parameters_.all()) {
    const Tensor gradient = ParameterList::view(gradients_, parameter);
    host.resize(static_cast<std::size_t>(gradient.elements()));
    copy_bytes(context, host.data(), Device::cpu(), gradient.data, gradient.device, gradient.bytes());
    context.synchronize();
    if (!std::all_of(host.begin(), host.end(), [](float value) { return std::isfinite(value); })) return parameter.name;
  }
  return "";
}

void OptimizerState::visit_state(StateVisitor& visitor) {
  visitor.tensor("optimizer.weights", weights_);
  visitor.tensor("optimizer.m", m_);
  visitor.tensor("optimizer.v", v_);
  visitor.tensor("optimizer.steps_taken", steps_taken_);
}

}  // namespace greyhound
