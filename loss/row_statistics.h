// Statistics of rows of logits for losses of your own (loss/row_loss.cuh): softmax in one read. Compiles for the host
// too. M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018.
#pragma once

#include <greyhound/core/dtype.h>

#include <cmath>
#include <cstdint>

namespace greyhound::loss {

// Maximum and sum of exponentials of the logits added so far. A logit of -inf is masked: it adds nothing. NaN or +inf
// makes every result NaN.
struct OnlineSoftmax {
  float max = -INFINITY;
  float sum = 0;  // of exp(z - max)

  GREYHOUND_HOST_DEVICE void add(float logit) {
    if (logit > max) {
      sum *= std::exp(max - logit);
      max = logit;
    }
    sum += std::exp(logit - base());
  }
  GREYHOUND_HOST_DEVICE void combine(const OnlineSoftmax& other) {
    const float top = other.max > max ? other.max : max;
    sum = at(top) + other.at(top);
    max = top;
  }
  GREYHOUND_HOST_DEVICE float log_sum_exp() const { return max + std::log(sum); }
  GREYHOUND_HOST_DEVICE float probability(float logit) const { return std::exp(logit - base()) / sum; }

  // sum of exp(z - top), for a finite top >= max, or the max itself.
  GREYHOUND_HOST_DEVICE float at(float top) const { return max == top ? sum : sum * std::exp(max - top); }

 private:
  // exp(-inf - 0) is 0, exp(-inf + inf) would be NaN.
  GREYHOUND_HOST_DEVICE float base() const { return max == -INFINITY ? 0.0f : max; }
};

// The same of a row with a target class y, which is kept apart: log p_y of a confident row, and the gradient at its
// target, are far below the rounding of 1.
struct TargetSoftmax {
  OnlineSoftmax others;
  float target = -INFINITY;  // its logit
  int has_target = 0;        // 0: y was none of the classes

  GREYHOUND_HOST_DEVICE void add(float logit, bool is_target) {
    if (is_target) {
      target = logit;
      has_target = 1;
    } else {
      others.add(logit);
    }
  }
  GREYHOUND_HOST_DEVICE void combine(const TargetSoftmax& other) {
    others.combine(other.others);
    if (other.has_target) {
      target = other.target;
      has_target = 1;
    }
  }

  // log p_y: (z_y - M) - log S. 0 where the row is of one class; -inf where the target is masked.
  GREYHOUND_HOST_DEVICE float log_p() const {
    const float m = max(), rest = others.at(m), own = std::exp(target - m);
    return (target - m) - (own == 1.0f ? std::log1p(rest) : std::log(rest + own));
  }
  GREYHOUND_HOST_DEVICE float p() const {
    const float m = max(), own = std::exp(target - m);
    return own / (others.at(m) + own);
  }
  // 1 - p_y as the sum of the others: never cancels.
  GREYHOUND_HOST_DEVICE float one_minus_p() const {
    const float m = max(), rest = others.at(m);
    return rest / (rest + std::exp(target - m));
  }
  GREYHOUND_HOST_DEVICE float probability(float logit) const {
    const float m = max();
    return std::exp(logit - m) / (others.at(m) + std::exp(target - m));
  }
  // d log p_y / d z_j = [j = y] - p_j.
  GREYHOUND_HOST_DEVICE float log_p_gradient(float logit, bool is_target) const {
    return is_target ? one_minus_p() : -probability(logit);
  }

 private:
  GREYHOUND_HOST_DEVICE float max() const { return others.max > target ? others.max : target; }
};

// Bases of functors: derive, and write `loss` and `gradient`. None of them is virtual.
struct SoftmaxLoss {
  using Statistics = OnlineSoftmax;
  GREYHOUND_HOST_DEVICE Statistics none() const { return {}; }
  GREYHOUND_HOST_DEVICE void add(Statistics& s, float logit, std::int64_t, int) const { s.add(logit); }
  GREYHOUND_HOST_DEVICE void combine(Statistics& s, const Statistics& other) const { s.combine(other); }
};

// Index: std::int32_t or std::int64_t.
template <class Index>
struct TargetSoftmaxLoss {
  using Statistics = TargetSoftmax;
  const Index* targets = nullptr;  // [N] of the call, in device memory. None of the classes (-100): has_target is 0

  TargetSoftmaxLoss() = default;
  explicit TargetSoftmaxLoss(const Index* targets) : targets(targets) {}

  GREYHOUND_HOST_DEVICE Index target(std::int64_t row) const {
#if defined(__CUDA_ARCH__)
    return __ldg(targets + row);  // read-only: one load per row, not per logit
#else
    return targets[row];
#endif
  }
  GREYHOUND_HOST_DEVICE Statistics none() const { return {}; }
  GREYHOUND_HOST_DEVICE void add(Statistics& s, float logit, std::int64_t row, int column) const {
    s.add(logit, column == target(row));
  }
  GREYHOUND_HOST_DEVICE void combine(Statistics& s, const Statistics& other) const { s.combine(other); }
};

}  // namespace greyhound::loss
