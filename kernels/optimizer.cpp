#include <greyhound/kernels/optimizer.h>

#include <greyhound/kernels/argument_checks.h>

namespace greyhound {

void gradient_norm(const Context& context, const GradientNorm& args, Workspace& workspace) {
  require_vector(context, args.grads, "gradient_norm: grads", DType::fp32, args.grads.elements());
  require_vector(context, args.norm, "gradient_norm: norm", DType::fp32, 1);
  run_on_device(
      context, [&] { cpu::gradient_norm(context, args, workspace); },
      [&] { cuda::gradient_norm(context, args, workspace); });
}

std::size_t gradient_norm_workspace_bytes(const Context& context, std::int64_t n) {
  return context.device().is_cuda() ? cuda::gradient_norm_workspace_bytes(context, n)
                                    : cpu::gradient_norm_workspace_bytes(context, n);
}

void adamw(const Context& context, const AdamW& args) {
  const std::int64_t n = args.weights.elements();
  require_vector(context, args.weights, "adamw: weights", DType::fp32, n);
  if (args.working_weights) require_vector(context, args.working_weights, "adamw: working_weights", DType::bf16, n);
  require_vector(context, args.grads, "adamw: grads", DType::fp32, n);
  require_vector(context, args.m, "adamw: m", DType::fp32, n);
  require_vector(context, args.v, "adamw: v", DType::fp32, n);
  require_vector(context, args.norm, "adamw: norm", DType::fp32, 1);
  require_vector(context, args.steps_taken, "adamw: steps_taken", DType::int64, 1);

  std::int64_t covered = 0;
  for (std::int64_t i = 0; i < args.range_count; ++i) {
    const DecayRange& range = args.ranges[i];
    require(range.begin == covered && range.end >= range.begin, "adamw: range ", i, " is [", range.begin, ", ",
            range.end, "), expected it to begin at ", covered);
    covered = range.end;
  }
  require(covered == n, "adamw: the ranges cover ", covered, " of ", n, " parameters");
  require(args.beta1 >= 0 && args.beta1 < 1 && args.beta2 >= 0 && args.beta2 < 1,
          "adamw: expected beta1 and beta2 in [0, 1), got ", args.beta1, " and ", args.beta2);
  require(args.eps >= 0 && args.grad_clip >= 0, "adamw: expected eps and grad_clip >= 0, got ", args.eps, " and ",
          args.grad_clip);
  run_on_device(
      context, [&] { cpu::adamw(context, args); }, [&] { cuda::adamw(context, args); });
}

}  // namespace greyhound
