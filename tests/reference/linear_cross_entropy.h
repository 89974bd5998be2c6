// Cross-entropy of a final projection in fp64, with its three gradients.
#pragma once

#include <tests/reference/cross_entropy.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace greyhound::reference {

// Row-major matrices. Arrays of weights and upstream values are empty or complete.
struct LinearCrossEntropy {
  std::int64_t rows = 0, hidden = 0, vocab = 0;
  std::vector<double> inputs, weight, bias;  // [N, D], [V, D], [V] or empty
  std::vector<std::int64_t> targets;
  std::vector<double> class_weights, row_weights, upstream;  // [V], [N], [N]
  double denominator = 1;
  CrossEntropyOptions options;
};

struct LinearCrossEntropyResult {
  double ce_sum = 0, z_sum = 0, weight_sum = 0;
  std::int64_t n_valid = 0;
  std::vector<double> row_loss;                               // [N]
  std::vector<double> grad_input, grad_weight, grad_bias;     // [N, D], [V, D], [V]
  std::vector<double> input_bound, weight_bound, bias_bound;  // the same sums over absolute values, for tolerances
};

inline LinearCrossEntropyResult linear_cross_entropy(const LinearCrossEntropy& problem) {
  const std::int64_t hidden = problem.hidden, vocab = problem.vocab;
  LinearCrossEntropyResult result;
  result.row_loss.assign(problem.rows, 0);
  for (auto* matrix : {&result.grad_input, &result.input_bound}) matrix->assign(problem.rows * hidden, 0);
  for (auto* matrix : {&result.grad_weight, &result.weight_bound}) matrix->assign(vocab * hidden, 0);
  for (auto* matrix : {&result.grad_bias, &result.bias_bound}) matrix->assign(vocab, 0);

  std::vector<double> logits(vocab);
  for (std::int64_t i = 0; i < problem.rows; ++i) {
    const std::int64_t target = problem.targets[i];
    if (target == problem.options.ignore_index || target < 0 || target >= vocab) continue;
    for (std::int64_t v = 0; v < vocab; ++v) {
      logits[v] = problem.bias.empty() ? 0 : problem.bias[v];
      for (std::int64_t d = 0; d < hidden; ++d) {
        logits[v] += problem.inputs[i * hidden + d] * problem.weight[v * hidden + d];
      }
    }
    const CrossEntropyRow row = cross_entropy_row(logits, target, problem.options);
    double weight = problem.class_weights.empty() ? 1 : problem.class_weights[target];
    if (!problem.row_weights.empty()) weight *= problem.row_weights[i];
    result.row_loss[i] = weight * row.loss;
    result.ce_sum += weight * row.ce;
    result.z_sum += weight * row.lse * row.lse;
    result.weight_sum += weight;
    result.n_valid += 1;

    double scale = problem.denominator == 0 ? 0 : weight / problem.denominator;
    if (!problem.upstream.empty()) scale *= problem.upstream[i];
    for (std::int64_t v = 0; v < vocab; ++v) {
      const double dz = scale * row.grad[v];
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
