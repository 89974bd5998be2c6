#include <greyhound/kernels/cross_entropy.h>

#include <greyhound/kernels/cpu/logit_row.h>
#include <greyhound/kernels/cpu/row_values.h>

namespace greyhound::cpu {

namespace {

constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

// upstream / denominator of a row.
double scale_at(const CrossEntropyRows& args, std::int64_t row) {
  const double upstream = row_value_at(args.upstream, row);
  const double denominator = value_at(args.denominator, 0);
  return denominator == 0 ? 0 : upstream / denominator;
}

// The gradient of a row but for its target: factor exp(z - M) - offset per unmasked column, times the softcap's slope.
template <class T>
void write_gradient(const T* logits, T* grad, std::int64_t vocab, const LogitTransform& transform, float max,
                    float factor, float offset) {
  LogitBlock storage, slope_storage;
  float* block = storage.values;
  float* slopes = transform.cap > 0 ? slope_storage.values : nullptr;
  for (std::int64_t begin = 0; begin < vocab; begin += block_columns) {
    const int count = static_cast<int>(std::min<std::int64_t>(block_columns, vocab - begin));
    const int length = load_block(logits + begin, count, block);
    if (!transform.plain()) transform_block(block, length, transform, slopes);
#pragma omp simd
    for (int j = 0; j < length; ++j) {
      const float z = block[j];
      const float gradient = factor * vec::exp(z - max) - offset;
      block[j] = z == -infinity ? 0.0f : gradient;
    }
    if (slopes != nullptr) {
#pragma omp simd
      for (int j = 0; j < length; ++j) block[j] *= slopes[j];
    }
    T* out = grad + begin;
    for (int j = 0; j < count; ++j) out[j] = from_float<T>(block[j]);
  }
}

// The derivative of softcap(x) / x's scale at one raw logit; 0 at a masked one, the limit.
float slope_at(float u, const LogitTransform& transform) {
  if (transform.cap <= 0) return 1;
  float slope;
  capped(u, transform.scale, transform.cap, &slope);
  return slope;
}

template <class T>
void valid_row(const CrossEntropyRows& args, std::int64_t row, std::int64_t target) {
  const std::int64_t vocab = args.targets.vocab;
  const LogitTransform transform{args.logit_scale, args.softcap};
  const RowRequest request{args.label_smoothing > 0, static_cast<bool>(args.entropy), static_cast<bool>(args.argmax)};
  const T* logits = static_cast<const T*>(args.logits.data) + row * args.logits.row_stride;
  const RowStatistics stats = row_statistics(logits, vocab, target, transform, request);

  // A few dozen scalar operations per row: in fp64, which costs nothing here and rounds once.
  const double smoothing = args.label_smoothing;
  const double smoothing_each = smoothing / static_cast<double>(std::max<std::int64_t>(1, stats.unmasked));
  const double weight = weight_at(args.class_weights, args.row_weights, row, target);
  const double log_sum = stats.log_sum();
  const double depth = static_cast<double>(stats.max) - stats.target_logit;
  const double lse = stats.max + log_sum;
  double ce = (1 - smoothing) * depth + log_sum;
  if (smoothing > 0) ce += smoothing_each * stats.gap_sum;

  put(args.row_ce, row, static_cast<float>(weight * ce));
  put(args.row_z, row, static_cast<float>(weight * lse * lse));
  put(args.row_weight, row, static_cast<float>(weight));
  const double penalty = args.z_loss_multiplier == 0 ? 0 : args.z_loss_multiplier * lse * lse;
  put(args.loss, row, static_cast<float>(weight * (ce + penalty)));
  put(args.lse, row, static_cast<float>(lse));
  put(args.target_logprob, row, static_cast<float>(-depth - log_sum));
  put(args.entropy, row, static_cast<float>(log_sum + stats.entropy_sum / stats.sum()));
  put(args.argmax, row, stats.argmax);
  if (!args.grad) return;

  const float raw_target = to_float(logits[target]);  // before the row is overwritten
  const double scale = scale_at(args, row) * weight * args.logit_scale;
  const double k = 1 + 2.0 * args.z_loss_multiplier * lse;
  T* grad = static_cast<T*>(args.grad.data) + row * args.grad.row_stride;
  write_gradient(logits, grad, vocab, transform, stats.max, static_cast<float>(scale * k / stats.sum()),
                 static_cast<float>(scale * smoothing_each));
  const double at_target = (-stats.others + (k - 1) * stats.target) / stats.sum() + smoothing - smoothing_each;
  // Adding 0 turns -0 into +0: an upstream of 0 gives zeros without a sign.
  grad[target] = from_float<T>(static_cast<float>(scale * at_target * slope_at(raw_target, transform)) + 0.0f);
  std::fill(grad + vocab, grad + args.grad.columns(), T{});
}

// An ignored row, or one whose target is out of range: it is not read and adds nothing.
template <class T>
void skipped_row(const CrossEntropyRows& args, std::int64_t row, bool ignored) {
  const float output = ignored ? 0.0f : quiet_nan;
  put(args.row_ce, row, 0.0f);
  put(args.row_z, row, 0.0f);
  put(args.row_weight, row, 0.0f);
  for (const Tensor* out : {&args.loss, &args.lse, &args.target_logprob, &args.entropy}) put(*out, row, output);
  put(args.argmax, row, std::int32_t{-1});
  if (!args.grad) return;
  T* grad = static_cast<T*>(args.grad.data) + row * args.grad.row_stride;
  std::fill(grad, grad + args.grad.columns(), T{});
}

}  // namespace

void cross_entropy_rows(const Context& context, const CrossEntropyRows& args) {
  dispatch(args.logits.dtype, "cross_entropy: logits", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t rows = args.logits.rows();
#pragma omp parallel for num_threads(context.threads()) schedule(static)
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t target = target_at(args.targets.index, row);
      if (is_valid(args.targets, target)) {
        valid_row<T>(args, row, target);
      } else {
        skipped_row<T>(args, row, is_ignored(args.targets, target));
      }
    }
  });
}

void count_targets(const Context&, const CountTargets& args) {
  const Targets& targets = args.targets;
  double sum = 0;
  for (std::int64_t row = 0; row < targets.index.elements(); ++row) {
    const std::int64_t target = target_at(targets.index, row);
    if (!is_valid(targets, target)) continue;
    sum += weight_at(args.class_weights, args.row_weights, row, target);
  }
  *static_cast<float*>(args.out.data) = static_cast<float>(sum);
}

void sum_rows(const Context&, const SumRows& args) {
  LossSumsData& sums = *args.sums;
  for (std::int64_t row = 0; row < args.targets.index.elements(); ++row) {
    const std::int64_t target = target_at(args.targets.index, row);
    if (is_ignored(args.targets, target)) continue;
    if (!is_valid(args.targets, target)) {
      if (sums.errors.count++ == 0) {
        sums.errors.first_row = row;
        sums.errors.value = target;
      }
      continue;
    }
    const float ce = value_at(args.row_ce, row), z = value_at(args.row_z, row);
    sums.ce_sum += ce;
    sums.z_sum += z;
    sums.weight_sum += value_at(args.row_weight, row);
    sums.n_valid += 1;
    if (!std::isfinite(ce) || !std::isfinite(z)) sums.nonfinite_rows += 1;
  }
}

}  // namespace greyhound::cpu
