// fp64 reference of kernels/optimizer.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace greyhound::reference {

inline double norm(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum);
}

struct AdamWState {
  std::vector<double> weights, m, v;
};

struct AdamWOptions {
  double lr, beta1, beta2, eps, grad_clip;
};

// Step number t (from 1 on) of one parameter after the other; weight_decay has one value per parameter.
inline void adamw(AdamWState* state, const std::vector<double>& grads, const std::vector<double>& weight_decay,
                  double grad_norm, int t, const AdamWOptions& options) {
  const double scale = options.grad_clip > 0 ? std::min(1.0, options.grad_clip / grad_norm) : 1.0;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const double g = grads[i] * scale;
    state->m[i] = options.beta1 * state->m[i] + (1 - options.beta1) * g;
    state->v[i] = options.beta2 * state->v[i] + (1 - options.beta2) * g * g;
    const double m_hat = state->m[i] / (1 - std::pow(options.beta1, t));
    const double v_hat = state->v[i] / (1 - std::pow(options.beta2, t));
    state->weights[i] -= options.lr * (m_hat / (std::sqrt(v_hat) + options.eps) + weight_decay[i] * state->weights[i]);
  }
}

}  // namespace greyhound::reference
