// Heads of the sizes that models have, against fp64 on a few rows.
#include <tests/loss/linear_problem.h>

#include <string>

using namespace greyhound;
using namespace greyhound::test;

namespace {

struct Named {
  std::string name;
  LinearProblem p;
  float softcap = 0;
};

const std::vector<Named> shapes{
    {"GPT-2's vocabulary", {100, 768, 50257, DType::fp32}},
    {"GPT-2's vocabulary in a padded weight", {100, 768, 50257, DType::bf16, 50304}},
    {"32000 classes and wide rows", {96, 1280, 32000, DType::bf16}},
    {"128256 classes", {104, 300, 128256, DType::bf16}},
    {"152064 classes", {104, 256, 152064, DType::fp32}},
    {"200064 classes", {104, 192, 200064, DType::fp16}},
    {"262144 classes with a softcap", {104, 144, 262144, DType::bf16}, 30},
    {"bytes, many rows", {40000, 384, 256, DType::fp32}},
    {"few classes, more rows than 16 bits count", {65537, 768, 65, DType::bf16}},
    {"rows of 16384", {64, 16384, 2047, DType::fp16}},
};

// Only a few rows have an upstream: they alone make the gradients, so that fp64 can check all of these.
void check_shape(const Named& shape) {
  const LinearProblem& p = shape.p;
  CAPTURE(shape.name);
  const std::int64_t rows[] = {0, 1, p.rows / 2, p.rows - 3, p.rows - 1};
  LinearData data(p, p.rows + 1);
  Buffer upstream(DType::fp32, Shape{p.rows});
  upstream.fill([](auto, auto) { return 0; });
  for (const std::int64_t row : rows) upstream.set(0, row, 1);
  loss::CrossEntropyOptions options;
  options.reduction = loss::Reduction::none;
  options.upstream = upstream;
  options.softcap = shape.softcap;
  options.z_loss_multiplier = 1e-3f;
  const LinearResult got = run_linear(p, data, options, {}, {true, true, true});
  CHECK(got.sums.n_valid == p.rows);

  // The same problem, of those rows alone.
  LinearProblem few = p;
  few.rows = 5;
  LinearData few_data({5, p.hidden, 1, p.dtype});
  few_data.weight = std::move(data.weight);
  LinearResult few_got{
      Buffer(p.dtype, Shape{5, p.hidden}), got.grad_weight, got.grad_bias, Buffer(DType::fp32, Shape{5}), {}};
  std::int64_t wrong = 0;
  for (std::int64_t i = 0, at = 0; i < p.rows; ++i) {
    const bool sampled = at < 5 && rows[at] == i;
    for (std::int64_t d = 0; d < p.hidden; ++d) {
      if (sampled) few_data.inputs.set(at, d, data.inputs.at(i, d));
      if (sampled) few_got.grad_input.set(at, d, got.grad_input.at(i, d));
      if (!sampled) wrong += got.grad_input.at(i, d) != 0;
    }
    if (!sampled) continue;
    few_data.targets.set_index(0, at, data.targets.host().as<std::int64_t>()[i]);
    few_got.row_loss.set(0, at, got.row_loss[i]);
    ++at;
  }
  CHECK(wrong == 0);
  options.upstream = {};
  const auto want = reference_result(few, few_data, options);
  const double tolerance = product_tolerance(p.dtype);
  for (int i = 0; i < 5; ++i) {
    CHECK(std::fabs(few_got.row_loss[i] - want.row_loss[i]) <= tolerance * want.row_loss[i]);
  }
  check_gradients(few, few_got, want, {true, true, true}, tolerance);
}

}  // namespace

SLOW_TEST_CASE_ON_EACH_BACKEND("chunked_linear_cross_entropy: heads of the sizes that models have") {
  for (const Named& shape : shapes) check_shape(shape);
}
