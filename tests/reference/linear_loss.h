// Any loss that is a sum over rows of logits = inputs x weight^T + bias, in fp64, with its three gradients.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace greyhound::reference {

// Row-major matrices.
struct Projection {
  std::int64_t rows = 0, hidden = 0, vocab = 0;
  std::vector<double> inputs, weight, bias;  // [N, D], [V, D], [V] or empty
};

struct ProjectionGradients {
  std::vector<double> grad_input, grad_weight, grad_bias;     // [N, D], [V, D], [V]
  std::vector<double> input_bound, weight_bound, bias_bound;  // the same sums over absolute values, for tolerances
};

// row(i, logits) gives the gradient of row i with respect to its logits; empty: none.
template <class Row>
ProjectionGradients projection_gradients(const Projection& problem, Row&& row) {
  const std::int64_t hidden = problem.hidden, vocab = problem.vocab;
  ProjectionGradients result;
  for (auto* matrix : {&result.grad_input, &result.input_bound}) matrix->assign(problem.rows * hidden, 0);
  for (auto* matrix : {&result.grad_weight, &result.weight_bound}) matrix->assign(vocab * hidden, 0);
  for (auto* matrix : {&result.grad_bias, &result.bias_bound}) matrix->assign(vocab, 0);
  std::vector<double> logits(vocab);
  for (std::int64_t i = 0; i < problem.rows; ++i) {
    for (std::int64_t v = 0; v < vocab; ++v) {
      logits[v] = problem.bias.empty() ? 0 : problem.bias[v];
      for (std::int64_t d = 0; d < hidden; ++d) {
        logits[v] += problem.inputs[i * hidden + d] * problem.weight[v * hidden + d];
      }
    }
    const std::vector<double> gradient = row(i, logits);
    for (std::int64_t v = 0; !gradient.empty() && v < vocab; ++v) {
      const double dz = gradient[v];
      result.grad_bias[v] += dz;
      result.bias_bound[v] += std::fabs(dz);
      for (std::int64_t d = 0; d < hidden; ++d) {
        const double by_weight = dz * problem.weight[v * hidden + d], by_input = dz * problem.inputs[i * hidden + d];
        result.grad_input[i * hidden + d] += by_weight;
        result.input_bound[i * hidden + d] += std::fabs(by_weight);
        result.grad_weight[v * hidden + d] += by_input;
        result.weight_bound[v * hidden + d] += std::fabs(by_input);
      }
    }
  }
  return result;
}

}  // namespace greyhound::reference
