// Cross-entropy of rows in fp64, every option, one plain loop per sum. Formulas: kernels/cross_entropy.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace greyhound::reference {

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;
  double z_loss_multiplier = 0;
  double softcap = 0;
  double logit_scale = 1;
};

struct CrossEntropyRow {
  double ce = 0, lse = 0, loss = 0;  // ce and loss without the row's weight
  double target_logprob = 0, entropy = 0;
  std::int64_t argmax = -1;
  std::vector<double> grad;  // d loss / d raw logits
};

// One valid row of raw logits.
inline CrossEntropyRow cross_entropy_row(const std::vector<double>& logits, std::int64_t target,
                                         const CrossEntropyOptions& options) {
  const auto vocab = static_cast<std::int64_t>(logits.size());
  const double c = options.softcap, e = options.label_smoothing;
  std::vector<double> z(logits.size());
  std::vector<bool> masked(logits.size());
  double max = -std::numeric_limits<double>::infinity(), largest = max;
  double unmasked = 0;
  CrossEntropyRow row;
  for (std::int64_t j = 0; j < vocab; ++j) {
    masked[j] = std::isinf(logits[j]) && logits[j] < 0;
    const double scaled = options.logit_scale * logits[j];
    z[j] = masked[j] || c == 0 ? scaled : c * std::tanh(scaled / c);
    if (masked[j]) continue;
    unmasked += 1;
    max = std::fmax(max, z[j]);
    if (logits[j] > largest) {
      largest = logits[j];
      row.argmax = j;
    }
  }
  double others = 0, gaps = 0;
  for (std::int64_t j = 0; j < vocab; ++j) {
    if (masked[j]) continue;
    if (j != target) others += std::exp(z[j] - max);
    gaps += max - z[j];
  }
  const double at_target = masked[target] ? 0 : std::exp(z[target] - max);
  const double sum = others + at_target;
  const double log_sum = z[target] == max ? std::log1p(others) : std::log(sum);
  row.lse = max + log_sum;
  row.ce = (1 - e) * (max - z[target]) + log_sum;
  if (e > 0) row.ce += e / unmasked * gaps;
  row.loss = row.ce + options.z_loss_multiplier * row.lse * row.lse;
  row.target_logprob = (z[target] - max) - log_sum;

  const double k = 1 + 2 * options.z_loss_multiplier * row.lse;
  row.grad.assign(logits.size(), 0);
  for (std::int64_t j = 0; j < vocab; ++j) {
    if (masked[j] && j != target) continue;
    const double p = masked[j] ? 0 : std::exp(z[j] - max) / sum;
    if (p > 0) row.entropy += p * (log_sum + (max - z[j]));
    double dz = k * p - e / unmasked;
    if (j == target) dz = -others / sum + (k - 1) * p + e - e / unmasked;
    const double cosh = c > 0 ? std::cosh(options.logit_scale * logits[j] / c) : 1;
    row.grad[j] = dz * options.logit_scale / (cosh * cosh);  // 1 - tanh^2, without cancellation
  }
  return row;
}

}  // namespace greyhound::reference
