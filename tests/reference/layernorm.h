// fp64 reference of kernels/layernorm.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace greyhound::reference {

struct LayerNorm {
  std::vector<double> out, mean, rstd;                     // forward
  std::vector<double> grad_input, grad_weight, grad_bias;  // backward
};

inline LayerNorm layernorm_forward(const std::vector<double>& input, const std::vector<double>& weight,
                                   const std::vector<double>& bias, std::int64_t rows, double eps) {
  const std::int64_t columns = static_cast<std::int64_t>(weight.size());
  LayerNorm result;
  for (std::int64_t row = 0; row < rows; ++row) {
    const double* x = input.data() + row * columns;
    double mean = 0, variance = 0;
    for (std::int64_t j = 0; j < columns; ++j) mean += x[j] / static_cast<double>(columns);
    for (std::int64_t j = 0; j < columns; ++j) variance += (x[j] - mean) * (x[j] - mean) / static_cast<double>(columns);
    const double rstd = 1 / std::sqrt(variance + eps);
    result.mean.push_back(mean);
    result.rstd.push_back(rstd);
    for (std::int64_t j = 0; j < columns; ++j) {
      result.out.push_back((x[j] - mean) * rstd * weight[j] + (bias.empty() ? 0.0 : bias[j]));
    }
  }
  return result;
}

// Gradients of sum(grad_out * out), from the chain rule through mean and variance.
inline LayerNorm layernorm_backward(const std::vector<double>& grad_out, const std::vector<double>& input,
                                    const std::vector<double>& weight, std::int64_t rows, double eps) {
  const std::int64_t columns = static_cast<std::int64_t>(weight.size());
  LayerNorm result = layernorm_forward(input, weight, {}, rows, eps);
  result.grad_weight.assign(weight.size(), 0.0);
  result.grad_bias.assign(weight.size(), 0.0);
  for (std::int64_t row = 0; row < rows; ++row) {
    const double* x = input.data() + row * columns;
    const double* dy = grad_out.data() + row * columns;
    const double mean = result.mean[row], rstd = result.rstd[row];
    double grad_mean = 0, grad_variance = 0;
    for (std::int64_t j = 0; j < columns; ++j) {
      grad_mean -= dy[j] * weight[j] * rstd;
      grad_variance -= dy[j] * weight[j] * (x[j] - mean) * 0.5 * rstd * rstd * rstd;
      result.grad_weight[j] += dy[j] * (x[j] - mean) * rstd;
      result.grad_bias[j] += dy[j];
    }
    for (std::int64_t j = 0; j < columns; ++j) {
      result.grad_input.push_back(dy[j] * weight[j] * rstd +
                                  (grad_mean + 2 * grad_variance * (x[j] - mean)) / static_cast<double>(columns));
    }
  }
  return result;
}

}  // namespace greyhound::reference
