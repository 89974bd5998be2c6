// fp64 references of kernels/elementwise.h.
#pragma once

#include <greyhound/kernels/elementwise.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace greyhound::reference {

// 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2u)), which keeps its accuracy in the left tail in fp64 too.
inline double gelu(double x) {
  const double u = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
  return x / (1 + std::exp(-2 * u));
}

inline double gelu_slope(double x) {
  const double root = std::sqrt(2 / std::acos(-1.0));
  const double u = root * (x + 0.044715 * x * x * x);
  const double logistic = 1 / (1 + std::exp(-2 * u));
  const double complement = 1 / (1 + std::exp(2 * u));
  return logistic + x * logistic * complement * 2 * root * (1 + 3 * 0.044715 * x * x);
}

// What dropout multiplies an element by.
inline double dropout_factor(const Dropout& dropout, std::int64_t row, std::int64_t column) {
  if (dropout.probability == 0) return 1;
  const Philox::Block words =
      Philox{dropout.key}(static_cast<std::uint64_t>(column / 4), dropout.first_row + static_cast<std::uint64_t>(row));
  const double drawn = static_cast<double>(words[static_cast<std::size_t>(column % 4)] >> 8) / 16777216.0;
  return drawn >= dropout.probability ? 1 / (1 - static_cast<double>(dropout.probability)) : 0;
}

inline std::vector<double> column_sums(const std::vector<double>& input, std::int64_t rows, std::int64_t columns) {
  std::vector<double> sums(static_cast<std::size_t>(columns), 0.0);
  for (std::int64_t i = 0; i < rows * columns; ++i) sums[i % columns] += input[i];
  return sums;
}

}  // namespace greyhound::reference
