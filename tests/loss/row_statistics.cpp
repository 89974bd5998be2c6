// loss/row_statistics.h on the host: softmax of a row in one pass, in parts, and of confident and masked rows.
#include <doctest/doctest.h>
#include <greyhound/core/rng.h>
#include <greyhound/loss/row_statistics.h>

#include <vector>

using namespace greyhound;
using doctest::Approx;

namespace {

std::vector<float> random_row(std::size_t count) {
  const Philox philox{mix_key(7, 0)};
  std::vector<float> row;
  for (std::size_t i = 0; i < count; ++i) row.push_back(20 * uniform(philox(i, 0)[0]) - 10);
  return row;
}

double log_sum_exp(const std::vector<float>& row) {
  double sum = 0;
  for (const float z : row) sum += std::exp(static_cast<double>(z));
  return std::log(sum);
}

// The row in `parts` interleaved parts, combined two by two.
loss::TargetSoftmax statistics(const std::vector<float>& row, std::size_t target, std::size_t parts = 1) {
  std::vector<loss::TargetSoftmax> part(parts);
  for (std::size_t i = 0; i < row.size(); ++i) part[i % parts].add(row[i], i == target);
  for (std::size_t step = 1; step < parts; step *= 2) {
    for (std::size_t i = 0; i + step < parts; i += 2 * step) part[i].combine(part[i + step]);
  }
  return part[0];
}

constexpr float masked = -INFINITY;

}  // namespace

TEST_CASE("OnlineSoftmax: log-sum-exp and probabilities, in one part or many") {
  const std::vector<float> row = random_row(1031);
  const double lse = log_sum_exp(row);
  for (const std::size_t parts : {1, 2, 5, 32, 2048}) {
    std::vector<loss::OnlineSoftmax> part(parts);
    for (std::size_t i = 0; i < row.size(); ++i) part[i % parts].add(row[i]);
    for (std::size_t i = 1; i < parts; ++i) part[0].combine(part[i]);
    CHECK(part[0].log_sum_exp() == Approx(lse).epsilon(1e-6));
    for (const float z : {row[0], row[700]}) {
      CHECK(part[0].probability(z) == Approx(std::exp(z - lse)).epsilon(1e-5));
    }
  }
}

TEST_CASE("TargetSoftmax: log p, p and 1 - p of the target, in one part or many") {
  const std::vector<float> row = random_row(517);
  for (const std::size_t target : {0, 11, 516}) {
    const double log_p = row[target] - log_sum_exp(row);
    for (const std::size_t parts : {1, 2, 32, 1024}) {
      const loss::TargetSoftmax s = statistics(row, target, parts);
      CHECK(s.has_target == 1);
      CHECK(s.log_p() == Approx(log_p).epsilon(1e-5));
      CHECK(s.p() == Approx(std::exp(log_p)).epsilon(1e-5));
      CHECK(s.one_minus_p() == Approx(-std::expm1(log_p)).epsilon(1e-5));
      CHECK(s.log_p_gradient(row[target], true) == s.one_minus_p());
      CHECK(s.log_p_gradient(row[3], false) == Approx(-std::exp(row[3] - log_sum_exp(row))).epsilon(1e-5));
    }
  }
  CHECK(statistics(row, 9999, 4).has_target == 0);
}

TEST_CASE("TargetSoftmax: a confident row keeps what is far below the rounding of 1") {
  const loss::TargetSoftmax s = statistics({-20, 10, -30}, 1);
  const double others = std::exp(-30.0) + std::exp(-40.0);
  CHECK(s.log_p() == Approx(-others).epsilon(1e-5));
  CHECK(s.one_minus_p() == Approx(others).epsilon(1e-5));
}

TEST_CASE("TargetSoftmax: one class, masked classes, a masked target") {
  CHECK(statistics({3}, 0).log_p() == 0);
  CHECK(statistics({3}, 0).one_minus_p() == 0);
  const loss::TargetSoftmax some = statistics({masked, 1, masked, 2}, 1, 4);
  CHECK(some.log_p() == Approx(-std::log1p(std::exp(1.0))).epsilon(1e-6));
  CHECK(some.probability(masked) == 0);
  const loss::TargetSoftmax target = statistics({masked, 1, 2}, 0, 2);
  CHECK(target.log_p() == masked);
  CHECK(target.p() == 0);
  CHECK(target.one_minus_p() == 1);
}

TEST_CASE("OnlineSoftmax and TargetSoftmax: NaN and +inf show in every result, wherever they stand") {
  for (const float bad : {std::nanf(""), INFINITY}) {
    for (std::size_t at = 0; at < 6; ++at) {
      std::vector<float> row = {1, 2, 3, masked, 5, 4};
      row[at] = bad;
      for (const std::size_t parts : {1, 4, 8}) {
        const loss::TargetSoftmax s = statistics(row, 2, parts);
        CHECK(std::isnan(s.log_p()));
        CHECK(std::isnan(s.one_minus_p()));
        CHECK(std::isnan(s.probability(1)));
      }
      loss::OnlineSoftmax all;
      for (const float z : row) all.add(z);
      CHECK(std::isnan(all.log_sum_exp()));
    }
  }
}
