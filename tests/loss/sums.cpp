#include <doctest/doctest.h>
#include <tests/loss/buffer.h>

using namespace greyhound;
using namespace greyhound::test;

TEST_CASE_ON_EACH_BACKEND("LossSums: add up over calls until they are reset, first bad row first") {
  const Context context = test_context(2);
  Sums sums(context);
  Scratch scratch(loss::cross_entropy_workspace_bytes(context, 3));
  const auto call = [&](const std::vector<std::int64_t>& y) {
    Buffer logits = matrix(DType::fp32, 3, std::vector<double>(6, 0)), target = targets(y);
    loss::cross_entropy_with_grad(context, logits, target, scratch.workspace, sums.sums);
  };
  call({0, 1, -100});
  call({5, 1, 9});
  call({8, 0, 0});
  const loss::Report report = sums.sums.read_unchecked(context);
  CHECK(std::fabs(report.ce_sum - 5 * std::log(2)) < 1e-6);
  CHECK(std::fabs(report.mean_ce() - std::log(2)) < 1e-6);
  CHECK(std::fabs(report.z_sum - 5 * std::log(2) * std::log(2)) < 1e-6);
  CHECK(report.n_valid == 5);
  CHECK(report.weight_sum == 5);
  CHECK(report.errors.count == 3);
  CHECK(report.errors.first_row == 0);
  CHECK(report.errors.value == 5);
  CHECK_THROWS_WITH_AS(sums.sums.read(context), doctest::Contains("target 5 in row 0"), Error);

  LossSumsData host;
  sums.sums.read_async(context, &host);
  context.synchronize();
  CHECK(loss::LossSums::report(host).ce_sum == report.ce_sum);

  sums.sums.reset(context);
  const loss::Report empty = sums.sums.read(context);
  CHECK(empty.ce_sum == 0);
  CHECK(empty.n_valid == 0);
  CHECK(empty.mean_ce() == 0);
}

TEST_CASE_ON_EACH_BACKEND("LossSums: rows that are not finite are counted, not thrown") {
  const Context context = test_context(1);
  Sums sums(context);
  Scratch scratch(loss::cross_entropy_workspace_bytes(context, 4));
  Buffer logits = matrix(DType::fp32, 4, {0, not_a_number, 0, infinity, 0, -infinity, 0, 0});
  Buffer target = targets({0, 0, 1, 1});
  loss::cross_entropy_with_grad(context, logits, target, scratch.workspace, sums.sums);
  const loss::Report report = sums.sums.read(context);
  CHECK(report.nonfinite_rows == 3);
  CHECK(report.n_valid == 4);
  CHECK(std::isnan(report.ce_sum));
}

TEST_CASE("LossSums: storage must be given and aligned") {
  const Context context = test_context(1);
  alignas(LossSumsData) unsigned char memory[sizeof(LossSumsData) + 1];
  CHECK_THROWS_AS(loss::LossSums(context, nullptr), Error);
  CHECK_THROWS_WITH_AS(loss::LossSums(context, memory + 1), doctest::Contains("aligned"), Error);
  static_assert(loss::LossSums::bytes == sizeof(LossSumsData));
}
