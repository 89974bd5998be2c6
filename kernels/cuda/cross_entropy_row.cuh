// The mathematics of one row of cross-entropy after its statistics are known, for every kernel that makes them.
// Formulas: kernels/cross_entropy.h. Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/cuda/row_statistics.cuh>
#include <greyhound/kernels/cuda/targets.cuh>

namespace greyhound::cuda {

struct CrossEntropyArguments {
  const void* logits;
  std::int64_t stride;
  void* grad;
  std::int64_t grad_stride;
  std::int64_t rows;
  int vocab, columns;
  TargetArguments targets;
  float *row_ce, *row_z, *row_weight;
  float *loss, *lse, *target_logprob, *entropy;
  std::int32_t* argmax;
  RowValues upstream;
  const float* denominator;
  float z_loss_multiplier, label_smoothing;
  Squash squash;

  // What the gradient of a row's loss is multiplied with, besides the row's weight.
  __device__ float upstream_of(std::int64_t row) const {
    const float divisor = denominator != nullptr ? *denominator : 1.0f;
    return divisor == 0 ? 0.0f : upstream[row] / divisor;
  }
};

__device__ inline void put(float* output, std::int64_t row, float value) {
  if (output != nullptr) output[row] = value;
}

// Row results of a row that counts for nothing: `optional_value` is 0 where it is ignored, NaN where its target is bad.
__device__ inline void write_skipped_row(const CrossEntropyArguments& args, std::int64_t row, float optional_value) {
  args.row_ce[row] = 0;
  args.row_z[row] = 0;
  put(args.row_weight, row, 0);
  put(args.loss, row, optional_value);
  put(args.lse, row, optional_value);
  put(args.target_logprob, row, optional_value);
  put(args.entropy, row, optional_value);
  if (args.argmax != nullptr) args.argmax[row] = -1;
}

// The target's column and logit, kept out of the statistics: the gradient needs S without it, since p_y - 1 would
// cancel.
struct TargetLogit {
  int column;
  float u, z;
  float slope;  // dz/du / logit_scale

  template <bool squashed>
  __device__ static TargetLogit make(const Squash& squash, int column, float u) {
    TargetLogit target{column, u, u, 1};
    target.z = squash.apply<squashed>(u, &target.slope);
    return target;
  }
};

// What the statistics of a row come to. Every thread of the row has it, so that logarithms are left to those who need
// them.
struct RowLoss {
  TargetLogit target;
  float weight;
  float max, other_sum, sum;
  float target_gap, target_exp;   // M - z_y, exp(z_y - M)
  float smoothing, smoothing_ce;  // e / V', and its part of the loss

  __device__ float log_sum() const { return log_of_sum(other_sum, target_exp); }
  __device__ float lse() const { return max + log_sum(); }
};

// From the statistics `s` of all columns but the target's. extras: entropy, argmax or label smoothing are wanted.
template <class T, bool extras>
__device__ inline RowLoss row_loss(const CrossEntropyArguments& args, RowStatistics& s, const TargetLogit& target,
                                   float weight) {
  if (target.z > s.max) raise_max<T, extras>(s, target.z);
  RowLoss loss{target, weight, s.max, s.sum};
  loss.target_gap = s.max - target.z;
  loss.target_exp = row_exp<T>(-loss.target_gap);
  loss.sum = s.sum + loss.target_exp;
  if (extras && args.label_smoothing > 0) {
    const bool masked = target.u == -INFINITY;
    loss.smoothing = args.label_smoothing / static_cast<float>(s.count + (masked ? 0 : 1));
    loss.smoothing_ce = loss.smoothing * (s.gap_sum + (masked ? 0.0f : loss.target_gap));
  }
  return loss;
}

// By one thread of the row.
template <bool extras>
__device__ inline void write_row(const CrossEntropyArguments& args, std::int64_t row, const RowStatistics& s,
                                 const RowLoss& loss) {
  const float log_sum = loss.log_sum(), lse = loss.max + log_sum;
  const float ce = (1.0f - args.label_smoothing) * loss.target_gap + loss.smoothing_ce + log_sum;
  args.row_ce[row] = loss.weight * ce;
  args.row_z[row] = loss.weight * (lse * lse);
  put(args.row_weight, row, loss.weight);
  const float total = args.z_loss_multiplier != 0 ? ce + args.z_loss_multiplier * (lse * lse) : ce;
  put(args.loss, row, loss.weight * total);
  put(args.lse, row, lse);
  put(args.target_logprob, row, -loss.target_gap - log_sum);
  if constexpr (extras) {
    const TargetLogit& target = loss.target;
    const float target_part = target.u == -INFINITY ? 0.0f : loss.target_exp * loss.target_gap;
    put(args.entropy, row, log_sum + (s.entropy_sum + target_part) / loss.sum);
    if (args.argmax != nullptr) {
      const bool target_is_top = target.u > s.argmax_value || (target.u == s.argmax_value && target.column < s.argmax);
      args.argmax[row] = target_is_top ? target.column : s.argmax;
    }
  }
}

// The gradient of one row: du_j = (probability * exp(z_j - max) - constant) * slope_j, and du_y.
struct RowGradient {
  float max;
  float probability;  // s w k logit_scale / S
  float constant;     // s w logit_scale e / V'

  float scale, k;  // s w logit_scale; 1 + 2 z_loss_multiplier lse
  RowLoss loss;

  __device__ RowGradient(const CrossEntropyArguments& args, const RowLoss& row, float upstream)
      : max(row.max), scale(upstream * row.weight * args.squash.scale), k(1), loss(row) {
    if (args.z_loss_multiplier != 0) k += 2.0f * args.z_loss_multiplier * row.lse();
    probability = scale * k / row.sum;
    constant = scale * row.smoothing;
  }

  __device__ float at_target(float label_smoothing) const {
    const float dz =
        -loss.other_sum / loss.sum + (k - 1.0f) * (loss.target_exp / loss.sum) + label_smoothing - loss.smoothing;
    return scale * dz * loss.target.slope + 0.0f;  // + 0 makes a zero of any sign +0
  }

  // Masked columns need no test of their own: 0 of any finite factor is the 0 that they get.
  __device__ bool plain() const { return constant == 0 && isfinite(probability); }

  // Turns logits of any columns but the target's into their gradients. is_plain: as plain() says.
  template <class T, bool squashed, bool is_plain>
  __device__ void apply(const Squash& squash, float (&values)[packed_size<T>]) const {
    // 16-bit gradients down to bf16's smallest, unless the factor is itself so small that it would lose digits.
    const bool shifted = sizeof(T) == 2 && fabsf(probability) > 1e-18f;
    const float shift = shifted ? 24.0f : 0.0f, factor = shifted ? probability * 0x1p-24f : probability;
#pragma unroll
    for (float& value : values) {
      float slope = 1;
      const float exponential = shifted_exp<T>(squash.apply<squashed>(value, &slope) - max, shift);
      if constexpr (is_plain && !squashed) {
        value = fmaf(factor, exponential, 0.0f);  // + 0 makes a zero of any sign +0
      } else {
        value = value == -INFINITY ? 0.0f : (factor * exponential - constant) * slope;
      }
    }
  }
};

}  // namespace greyhound::cuda
