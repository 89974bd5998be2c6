#include <greyhound/kernels/optimizer.h>

#include <greyhound/kernels/cpu/rows.h>

#include <cmath>

namespace greyhound::cpu {

namespace {

// Elements of one task. The partition depends on n alone.
constexpr std::int64_t block_elements = 16384;

// What a step needs besides the parameters, made once in fp64: 1 - beta^t cancels for beta near 1.
struct AdamWStep {
  float grad_scale;
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float inverse_correction1, inverse_correction2;
  float lr, eps;

  AdamWStep(const AdamW& args, float norm, std::int64_t t)
      : grad_scale(args.grad_clip > 0 && norm > args.grad_clip ? args.grad_clip / norm : 1.0f),
        beta1(args.beta1),
        one_minus_beta1(static_cast<float>(1.0 - args.beta1)),
        beta2(args.beta2),
        one_minus_beta2(static_cast<float>(1.0 - args.beta2)),
        inverse_correction1(static_cast<float>(1.0 / (1.0 - std::pow(double{args.beta1}, static_cast<double>(t))))),
        inverse_correction2(static_cast<float>(1.0 / (1.0 - std::pow(double{args.beta2}, static_cast<double>(t))))),
        lr(args.lr),
        eps(args.eps) {}
};

// Parameters [begin, end), which share one weight decay.
void update(const AdamWStep& step, const AdamW& args, std::int64_t begin, std::int64_t end, float weight_decay) {
  float* weights = args.weights.as<float>();
  float* m = args.m.as<float>();
  float* v = args.v.as<float>();
  const float* grads = args.grads.as<float>();
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    const float grad = grads[i] * step.grad_scale;
    m[i] = step.beta1 * m[i] + step.one_minus_beta1 * grad;
    v[i] = step.beta2 * v[i] + step.one_minus_beta2 * (grad * grad);
    const float denominator = std::sqrt(v[i] * step.inverse_correction2) + step.eps;
    weights[i] -= step.lr * (m[i] * step.inverse_correction1 / denominator + weight_decay * weights[i]);
  }
  if (args.working_weights) {
    bf16* working = args.working_weights.as<bf16>();
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) working[i] = from_float<bf16>(weights[i]);
  }
}

}  // namespace

std::size_t gradient_norm_workspace_bytes(const Context&, std::int64_t n) {
  return Workspace::size(DType::fp64, {ceil_div(n, block_elements)});
}

void gradient_norm(const Context& context, const GradientNorm& args, Workspace& workspace) {
  const std::int64_t n = args.grads.elements(), blocks = ceil_div(n, block_elements);
  const float* grads = args.grads.as<float>();
  const Workspace::Scope scope(workspace);
  double* partials = workspace.take(DType::fp64, {blocks}).as<double>();
#pragma omp parallel for num_threads(context.threads()) schedule(static) if (blocks > 1)
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t begin = block * block_elements, end = std::min(n, begin + block_elements);
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = begin; i < end; ++i) sum += double{grads[i]} * double{grads[i]};
    partials[block] = sum;
  }
  double sum = 0;
  for (std::int64_t block = 0; block < blocks; ++block) sum += partials[block];
  *args.norm.as<float>() = static_cast<float>(std::sqrt(sum));
}

void adamw(const Context& context, const AdamW& args) {
  const float norm = *args.norm.as<float>();
  if (!std::isfinite(norm)) return;
  std::int64_t& steps_taken = *args.steps_taken.as<std::int64_t>();
  ++steps_taken;
  const AdamWStep step(args, norm, steps_taken);

  const std::int64_t n = args.weights.elements(), blocks = ceil_div(n, block_elements);
  const DecayRange* ranges_end = args.ranges + args.range_count;
#pragma omp parallel for num_threads(context.threads()) schedule(static) if (blocks > 1)
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t begin = block * block_elements, end = std::min(n, begin + block_elements);
    const DecayRange* range =
        std::upper_bound(args.ranges, ranges_end, begin, [](std::int64_t i, const DecayRange& r) { return i < r.end; });
    for (; range != ranges_end && range->begin < end; ++range) {
      update(step, args, std::max(begin, range->begin), std::min(end, range->end), range->weight_decay);
    }
  }
}

}  // namespace greyhound::cpu
