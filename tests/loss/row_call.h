// One call of cross_entropy_with_grad for tests, with everything that it gives back.
#pragma once

#include <doctest/doctest.h>
#include <greyhound/loss/cross_entropy.h>
#include <tests/loss/buffer.h>

namespace greyhound::test {

// What a call gave back.
struct RowCallResult {
  Buffer grad;
  loss::Report report;
  Buffer loss, lse, target_logprob, entropy, argmax;
};

inline RowCallResult run_cross_entropy(Buffer logits, Buffer target, const loss::CrossEntropyOptions& options = {},
                                       std::int64_t vocab = 0) {
  const Context context = test_context(2);
  const std::int64_t rows = logits.rows();
  RowCallResult result;
  for (Buffer* out : {&result.loss, &result.lse, &result.target_logprob, &result.entropy}) {
    *out = Buffer(DType::fp32, Shape{rows});
  }
  result.argmax = Buffer(DType::int32, Shape{rows});
  Sums sums(context);
  Scratch scratch(loss::cross_entropy_workspace_bytes(context, rows));
  const loss::RowOutputs outputs{result.loss, result.lse, result.target_logprob, result.entropy, result.argmax};
  loss::cross_entropy_with_grad(context, logits, target, options, scratch.workspace, sums.sums, outputs, vocab);
  CHECK(scratch.guards_intact());
  CHECK(logits.guards_intact());
  for (const Buffer* out : {&result.loss, &result.lse, &result.target_logprob, &result.entropy, &result.argmax}) {
    CHECK(out->written());
  }
  result.report = sums.sums.read_unchecked(context);
  result.grad = std::move(logits);
  return result;
}

inline RowCallResult run_cross_entropy_row(DType dtype, const std::vector<double>& z, std::int64_t y,
                                           const loss::CrossEntropyOptions& options = {}) {
  return run_cross_entropy(matrix(dtype, 1, z), targets({y}), options);
}

inline void check_near(double got, double want, double relative = 1e-5) {
  CAPTURE(want);
  CHECK(std::fabs(got - want) <= relative * std::fabs(want));
}

inline void check_row(const Buffer& got, std::int64_t row, const std::vector<double>& want, double relative = 1e-5,
                      double absolute = 0) {
  for (std::size_t j = 0; j < want.size(); ++j) {
    CAPTURE(row);
    CAPTURE(j);
    CAPTURE(want[j]);
    const double value = got.at(row, static_cast<std::int64_t>(j));
    CHECK(std::fabs(value - want[j]) <= relative * std::fabs(want[j]) + absolute);
  }
}

}  // namespace greyhound::test
