// Log-probabilities of chosen classes of a row, and their gradient, in fp64. Formulas: kernels/selective_log_softmax.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace greyhound::reference {

struct SelectiveOptions {
  std::int64_t ignore_index = -100;
  double softcap = 0;
  double logit_scale = 1;
};

struct SelectiveRow {
  std::vector<double> logprob;      // one per index: 0 for ignored ones, NaN for those out of range
  double lse = 0;                   // 0 without a valid index
  std::vector<double> grad, bound;  // d sum(grad_out * logprob) / d raw logits, and the sum of its terms' absolutes
};

inline SelectiveRow selective_log_softmax_row(const std::vector<double>& logits, const std::vector<std::int64_t>& index,
                                              const std::vector<double>& grad_out, const SelectiveOptions& options) {
  const double c = options.softcap;
  SelectiveRow row;
  row.grad.assign(logits.size(), 0);
  row.bound.assign(logits.size(), 0);
  const auto valid = [&](std::int64_t y) {
    return y != options.ignore_index && y >= 0 && y < static_cast<std::int64_t>(logits.size());
  };
  bool any = false;
  for (const std::int64_t y : index) any |= valid(y);

  std::vector<double> z(logits.size());
  double max = -std::numeric_limits<double>::infinity(), sum = 0;
  for (std::size_t j = 0; j < z.size(); ++j) {
    const double scaled = options.logit_scale * logits[j];
    z[j] = c == 0 || std::isinf(scaled) ? scaled : c * std::tanh(scaled / c);
    max = std::fmax(max, z[j]);
  }
  for (const double value : z) sum += std::exp(value - max);
  if (any) row.lse = max + std::log(sum);

  for (std::size_t k = 0; k < index.size(); ++k) {
    const std::int64_t y = index[k];
    row.logprob.push_back(y == options.ignore_index ? 0 : std::numeric_limits<double>::quiet_NaN());
    if (!valid(y)) continue;
    double others = 0;
    for (std::size_t j = 0; j < z.size(); ++j) {
      const double p = std::exp(z[j] - max) / sum;
      if (static_cast<std::int64_t>(j) == y) continue;
      others += p;
      row.grad[j] -= grad_out[k] * p;
      row.bound[j] += std::fabs(grad_out[k]) * p;
    }
    row.grad[y] += grad_out[k] * others;
    row.bound[y] += std::fabs(grad_out[k]) * others;
    row.logprob[k] = z[y] == max ? -std::log1p(others * sum) : (z[y] - max) - std::log(sum);
  }
  for (std::size_t j = 0; j < z.size(); ++j) {
    const double cosh = c > 0 ? std::cosh(options.logit_scale * logits[j] / c) : 1;
    const double slope = options.logit_scale / (cosh * cosh);  // 1 - tanh^2, without cancellation
    row.grad[j] *= slope;
    row.bound[j] *= slope;
  }
  return row;
}

}  // namespace greyhound::reference
