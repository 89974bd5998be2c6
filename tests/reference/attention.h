// fp64 reference of kernels/attention.h, with the scores held as a whole.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace greyhound::reference {

struct AttentionShape {
  std::int64_t batch, tokens, channels, heads;
  std::int64_t size() const { return channels / heads; }
};

struct Attention {
  std::vector<double> out, lse, grad_qkv;
  // Sums of absolute products on the way to each element: what rounding errors are measured by.
  std::vector<double> out_bound, grad_bound;
};

// factor(row, head, key) is what dropout multiplies a weight by: 0 or 1 / (1 - probability). grad_out may be empty.
template <class Factor>
Attention attention(const std::vector<double>& qkv, const std::vector<double>& grad_out, const AttentionShape& shape,
                    Factor&& factor) {
  const std::int64_t tokens = shape.tokens, channels = shape.channels, size = shape.size();
  const std::int64_t rows = shape.batch * tokens;
  const double scale = 1 / std::sqrt(static_cast<double>(size));
  Attention result;
  result.out.assign(rows * channels, 0.0);
  result.out_bound.assign(rows * channels, 0.0);
  result.lse.assign(shape.batch * shape.heads * tokens, 0.0);
  result.grad_qkv.assign(grad_out.empty() ? 0 : rows * 3 * channels, 0.0);
  result.grad_bound.assign(result.grad_qkv.size(), 0.0);
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const auto at = [&](std::int64_t t, int part) {
        return (b * tokens + t) * 3 * channels + part * channels + h * size;
      };
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::int64_t row = b * tokens + t, out = row * channels + h * size;
        std::vector<double> weights(t + 1), factors(t + 1);
        double maximum = -HUGE_VAL, total = 0;
        for (std::int64_t s = 0; s <= t; ++s) {
          double score = 0;
          for (std::int64_t d = 0; d < size; ++d) score += qkv[at(t, 0) + d] * qkv[at(s, 1) + d];
          weights[s] = scale * score;
          maximum = std::fmax(maximum, weights[s]);
          factors[s] = factor(row, h, s);
        }
        for (double& weight : weights) total += weight = std::exp(weight - maximum);
        for (double& weight : weights) weight /= total;
        result.lse[(b * shape.heads + h) * tokens + t] = maximum + std::log(total);
        for (std::int64_t s = 0; s <= t; ++s) {
          for (std::int64_t d = 0; d < size; ++d) {
            const double product = factors[s] * weights[s] * qkv[at(s, 2) + d];
            result.out[out + d] += product;
            result.out_bound[out + d] += std::fabs(product);
          }
        }
        if (grad_out.empty()) continue;
        // softmax: dS = P (dP - sum P dP)
        std::vector<double> grad_weights(t + 1), magnitudes(t + 1);
        double mean = 0, mean_magnitude = 0;
        for (std::int64_t s = 0; s <= t; ++s) {
          double dot = 0, magnitude = 0;
          for (std::int64_t d = 0; d < size; ++d) {
            const double product = grad_out[out + d] * qkv[at(s, 2) + d];
            dot += product;
            magnitude += std::fabs(product);
            result.grad_qkv[at(s, 2) + d] += factors[s] * weights[s] * grad_out[out + d];
            result.grad_bound[at(s, 2) + d] += std::fabs(factors[s] * weights[s] * grad_out[out + d]);
          }
          grad_weights[s] = factors[s] * dot;
          magnitudes[s] = factors[s] * magnitude;
          mean += weights[s] * grad_weights[s];
          mean_magnitude += weights[s] * magnitudes[s];
        }
        for (std::int64_t s = 0; s <= t; ++s) {
          const double grad_score = scale * weights[s] * (grad_weights[s] - mean);
          const double magnitude = scale * weights[s] * (magnitudes[s] + mean_magnitude);
          for (std::int64_t d = 0; d < size; ++d) {
            result.grad_qkv[at(t, 0) + d] += grad_score * qkv[at(s, 1) + d];
            result.grad_qkv[at(s, 1) + d] += grad_score * qkv[at(t, 0) + d];
            result.grad_bound[at(t, 0) + d] += magnitude * std::fabs(qkv[at(s, 1) + d]);
            result.grad_bound[at(s, 1) + d] += magnitude * std::fabs(qkv[at(t, 0) + d]);
          }
        }
      }
    }
  }
  return result;
}

}  // namespace greyhound::reference
