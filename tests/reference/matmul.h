// fp64 reference of kernels/matmul.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace greyhound::reference {

struct MatmulResult {
  std::vector<double> values;  // alpha * op(a) x op(b), [m, n]
  std::vector<double> bound;   // sum |a| |b|: what rounding errors of any order of summation are measured by
};

inline MatmulResult matmul(const std::vector<double>& a, const std::vector<double>& b, bool transpose_a,
                           bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k) {
  MatmulResult result{std::vector<double>(m * n, 0.0), std::vector<double>(m * n, 0.0)};
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0, magnitude = 0;
      for (std::int64_t d = 0; d < k; ++d) {
        const double product = a[transpose_a ? d * m + i : i * k + d] * b[transpose_b ? j * k + d : d * n + j];
        sum += product;
        magnitude += std::fabs(product);
      }
      result.values[i * n + j] = sum;
      result.bound[i * n + j] = magnitude;
    }
  }
  return result;
}

// The tanh form of GELU, as GPT-2 uses it.
inline double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

}  // namespace greyhound::reference
