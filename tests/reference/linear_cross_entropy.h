// Cross-entropy of a final projection in fp64, with its three gradients.
#pragma once

#include <tests/reference/cross_entropy.h>
#include <tests/reference/linear_loss.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace greyhound::reference {

// Arrays of weights and upstream values are empty or complete.
struct LinearCrossEntropy : Projection {
  std::vector<std::int64_t> targets;
  std::vector<double> class_weights, row_weights, upstream;  // [V], [N], [N]
  double denominator = 1;
  CrossEntropyOptions options;
};

struct LinearCrossEntropyResult : ProjectionGradients {
  double ce_sum = 0, z_sum = 0, weight_sum = 0;
  std::int64_t n_valid = 0;
  std::vector<double> row_loss;  // [N]
};

inline LinearCrossEntropyResult linear_cross_entropy(const LinearCrossEntropy& problem) {
  LinearCrossEntropyResult result;
  result.row_loss.assign(problem.rows, 0);
  const auto row_gradient = [&](std::int64_t i, const std::vector<double>& logits) -> std::vector<double> {
    const std::int64_t target = problem.targets[i];
    if (target == problem.options.ignore_index || target < 0 || target >= problem.vocab) return {};
    CrossEntropyRow row = cross_entropy_row(logits, target, problem.options);
    double weight = problem.class_weights.empty() ? 1 : problem.class_weights[target];
    if (!problem.row_weights.empty()) weight *= problem.row_weights[i];
    result.row_loss[i] = weight * row.loss;
    result.ce_sum += weight * row.ce;
    result.z_sum += weight * row.lse * row.lse;
    result.weight_sum += weight;
    result.n_valid += 1;
    double scale = problem.denominator == 0 ? 0 : weight / problem.denominator;
    if (!problem.upstream.empty()) scale *= problem.upstream[i];
    for (double& dz : row.grad) dz *= scale;
    return row.grad;
  };
  static_cast<ProjectionGradients&>(result) = projection_gradients(problem, row_gradient);
  return result;
}

}  // namespace greyhound::reference
