// Layer norm on CUDA against the CPU, and against fp64.
#include <greyhound/kernels/layernorm.h>
#include <tests/cuda_support.h>
#include <tests/reference/layernorm.h>

#include <limits>

using namespace greyhound;
using namespace greyhound::cuda_test;

namespace {

constexpr float eps = 1e-5f;

struct Case {
  std::int64_t rows, columns, gap = 0, offset = 0;
  double shift = 0;  // added to every input
  bool bias = true;
};

// Rows of one, two, four and eight warps, a few and so many that each warp makes several, and rows too long or too odd
// to be held.
std::vector<Case> cases() {
  std::vector<Case> all = {{5, 1024},
                           {5, 2048},
                           {5, 3072},
                           {5, 4096},
                           {3, 8192},
                           {3, 9000},
                           {2, 7001},
                           {2, 9001, 7},
                           {600, 64},
                           {9000, 8},
                           {40, 768, 0, 0, 1e4},
                           {33, 17, 3, 1, -3.5},
                           {6, 1600, 0, 0, 100},
                           {7000, 200},
                           {3500, 512},
                           {2000, 768},
                           {1500, 1024},
                           {1000, 1280},
                           {1000, 2048},
                           {500, 2560},
                           {500, 4096}};
  for (std::int64_t rows : {1, 2, 3, 127}) {
    for (std::int64_t columns : {1, 3, 17, 64, 100, 768, 1600}) {
      all.push_back({rows, columns});
      all.push_back({rows, columns, 8, 0, 0, false});
      all.push_back({rows, columns, 3, 1});
    }
  }
  return all;
}

struct Problem {
  HostTensor input, branch, grad_out, weight, bias, old;
};

HostTensor matrix(DType dtype, const Case& c, std::uint64_t seed, double shift = 0) {
  return HostTensor::random(dtype, {c.rows, c.columns}, seed, shift - 2, shift + 2, c.columns + c.gap, c.offset);
}

Problem make_problem(DType dtype, const Case& c) {
  Problem p;
  p.input = matrix(dtype, c, 31, c.shift);
  p.branch = matrix(dtype, c, 32);
  p.grad_out = matrix(dtype, c, 33);
  p.old = matrix(dtype, c, 34);
  p.weight = HostTensor::random(dtype, {c.columns}, 35, -2, 2, 0, c.offset);
  if (c.bias) p.bias = HostTensor::random(dtype, {c.columns}, 36, -2, 2, 0, c.offset);
  return p;
}

HostTensor like(const HostTensor& tensor) {
  HostTensor fresh = tensor;
  std::fill(fresh.bytes().begin(), fresh.bytes().end(), 0xff);
  return fresh;
}

struct Forward {
  HostTensor sum, out, mean, rstd;
};

Forward run_forward(const Context& context, const Problem& p, bool statistics = true) {
  const HostTensor per_row = statistics ? HostTensor(DType::fp32, {p.input.shape().rows()}) : HostTensor();
  const Placed input(context, p.input), weight(context, p.weight), bias(context, p.bias), out(context, like(p.input)),
      mean(context, per_row), rstd(context, per_row);
  layernorm_forward(context, {input, weight, bias, out, mean, rstd, eps});
  return {HostTensor(), out.back(), mean.back(), rstd.back()};
}

Forward run_fused(const Context& context, const Problem& p, const Dropout& dropout, int place = 0) {
  const HostTensor per_row(DType::fp32, {p.input.shape().rows()});
  const Placed residual(context, p.input), branch(context, p.branch), sum(context, like(p.input)),
      weight(context, p.weight), bias(context, p.bias), out(context, like(p.input)), mean(context, per_row),
      rstd(context, per_row);
  const Placed& target = place == 0 ? sum : place == 1 ? residual : branch;
  residual_layernorm(context, {residual, branch, target, dropout, weight, bias, out, mean, rstd, eps});
  return {target.back(), out.back(), mean.back(), rstd.back()};
}

struct Backward {
  HostTensor input, weight, bias, input_sums;
};

enum class Target { fresh, accumulate, in_place };

// With mean and rstd of the CPU, so that both backends start from the same.
Backward run_backward(const Context& context, const Problem& p, const Forward& forward, Target target,
                      bool accumulate_weight) {
  const std::int64_t rows = p.input.shape().rows(), columns = p.input.shape().columns();
  const HostTensor sums =
      accumulate_weight ? HostTensor::random(DType::fp32, {columns}, 37) : HostTensor(DType::fp32, {columns});
  const Placed grad_out(context, p.grad_out), input(context, p.input), weight(context, p.weight),
      mean(context, forward.mean), rstd(context, forward.rstd),
      fresh(context, target == Target::accumulate ? p.old : like(p.old)), grad_weight(context, sums),
      grad_bias(context, p.bias.bytes().empty() ? HostTensor() : sums), input_sums(context, sums);
  const Placed& grad_input = target == Target::in_place ? grad_out : fresh;
  GuardedWorkspace scratch(context, layernorm_backward_workspace_bytes(context, rows, columns));
  layernorm_backward(context,
                     {grad_out, input, weight, mean, rstd, grad_input, target == Target::accumulate, grad_weight,
                      grad_bias, accumulate_weight, input_sums},
                     scratch.workspace);
  CHECK(scratch.intact());
  return {grad_input.back(), grad_weight.back(), grad_bias.back(), input_sums.back()};
}

double largest(const HostTensor& tensor) {
  double most = 0;
  for (double value : tensor.values()) most = std::max(most, std::fabs(value));
  return most;
}

HostTensor rounded(const HostTensor& like_this, const std::vector<double>& values) {
  HostTensor tensor = like(like_this);
  for (std::size_t i = 0; i < values.size(); ++i) tensor.set(static_cast<std::int64_t>(i), values[i]);
  return tensor;
}

// The sums over rows are those of what was written: as far as fp32 goes, which adds a share of the rows.
void check_input_sums(const Backward& got, bool accumulated) {
  const std::int64_t rows = got.input.shape().rows(), columns = got.input.shape().columns();
  const HostTensor start = HostTensor::random(DType::fp32, {columns}, 37);
  for (std::int64_t j = 0; j < columns; ++j) {
    double sum = accumulated ? start.get(j) : 0, magnitude = std::fabs(sum);
    for (std::int64_t i = 0; i < rows; ++i) {
      sum += got.input.get(i * columns + j);
      magnitude += std::fabs(got.input.get(i * columns + j));
    }
    REQUIRE(std::fabs(got.input_sums.get(j) - sum) <= 1e-6 * magnitude);
  }
}

}  // namespace

TEST_CASE("layernorm_forward on CUDA: every size and alignment" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16}) {
    for (const Case& c : cases()) {
      CAPTURE(c.rows);
      CAPTURE(c.columns);
      CAPTURE(c.gap);
      CAPTURE(std::string(name_of(dtype)));
      const Problem p = make_problem(dtype, c);
      const Forward got = run_forward(device_context(), p), expected = run_forward(Context::cpu(), p);
      check_agree("out", got.out, expected.out, 4e-6, 1e-5);
      check_agree("mean", got.mean, expected.mean, 1e-6, 1e-6);
      check_agree("rstd", got.rstd, expected.rstd, 4e-6);
      const reference::LayerNorm exact = reference::layernorm_forward(
          p.input.values(), p.weight.values(), p.bias.bytes().empty() ? std::vector<double>() : p.bias.values(), c.rows,
          double{eps});
      check_agree("out against fp64", got.out, rounded(got.out, exact.out), 4e-6, 1e-5);
      check_agree("rstd against fp64", got.rstd, rounded(got.rstd, exact.rstd), 4e-6);
      CHECK(run_forward(device_context(), p, false).out.bytes() == got.out.bytes());
    }
  }
}

TEST_CASE("layernorm_forward on CUDA: misaligned rows give the same bits" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16}) {
    for (std::int64_t columns : {64, 768, 1600, 4096, 8192}) {
      const Forward aligned = run_forward(device_context(), make_problem(dtype, {7, columns}));
      const Forward moved = run_forward(device_context(), make_problem(dtype, {7, columns, 3, 1}));
      CHECK(moved.out.values() == aligned.out.values());
      CHECK(moved.rstd.bytes() == aligned.rstd.bytes());
    }
  }
}

TEST_CASE("layernorm on CUDA: a large common offset, a constant row, NaN and infinity" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (std::int64_t columns : {1000, 1001}) {
    for (double shift : {1e4, -1e6, 4e6}) {
      CAPTURE(shift);
      const Problem p = make_problem(DType::fp32, {5, columns, 0, 0, shift, false});
      const Forward got = run_forward(device_context(), p);
      const reference::LayerNorm exact =
          reference::layernorm_backward(p.grad_out.values(), p.input.values(), p.weight.values(), 5, double{eps});
      check_agree("out", got.out, rounded(got.out, exact.out), 1e-6, 3e-6);
      const Backward gradients = run_backward(device_context(), p, got, Target::fresh, false);
      check_agree("grad_input", gradients.input, rounded(gradients.input, exact.grad_input), 1e-6, 5e-6);
      check_agree("grad_weight", gradients.weight, rounded(gradients.weight, exact.grad_weight), 1e-6, 1e-5);
    }
  }
  Problem p = make_problem(DType::fp32, {4, 8});
  for (std::int64_t j = 0; j < 8; ++j) p.input.set(j, 7);
  p.input.set(8 + 3, std::numeric_limits<double>::quiet_NaN());
  p.input.set(16 + 5, std::numeric_limits<double>::infinity());
  const Forward got = run_forward(device_context(), p), expected = run_forward(Context::cpu(), p);
  check_agree("out", got.out, expected.out, 1e-6, 1e-6);
  check_agree("rstd", got.rstd, expected.rstd, 1e-6);
  for (std::int64_t j = 0; j < 8; ++j) CHECK(got.out.get(j) == p.bias.get(j));
}

TEST_CASE("residual_layernorm on CUDA: the two operators in one" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16}) {
    for (const Case& c : cases()) {
      for (float probability : {0.0f, 0.2f}) {
        CAPTURE(c.rows);
        CAPTURE(c.columns);
        CAPTURE(c.gap);
        CAPTURE(probability);
        const Problem p = make_problem(dtype, c);
        const Dropout dropout{probability, 12345, 1ull << 33};
        const Forward got = run_fused(device_context(), p, dropout);
        // The sum may be rounded another way on another backend; the norm is that of the sum.
        check_agree("sum", got.sum, run_fused(Context::cpu(), p, dropout).sum, 2e-7, 5e-7);
        Problem apart = p;
        apart.input = got.sum;
        const Forward norm = run_forward(Context::cpu(), apart);
        check_agree("out", got.out, norm.out, 4e-6, 1e-5);
        check_agree("mean", got.mean, norm.mean, 1e-6, 1e-6);
        check_agree("rstd", got.rstd, norm.rstd, 4e-6);
        for (int place : {1, 2}) {
          const Forward in_place = run_fused(device_context(), p, dropout, place);
          CHECK(in_place.sum.values() == got.sum.values());
          CHECK(in_place.out.values() == got.out.values());
        }
      }
    }
  }
}

TEST_CASE("layernorm_backward on CUDA: every size, alignment and accumulation" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16}) {
    for (const Case& c : cases()) {
      CAPTURE(c.rows);
      CAPTURE(c.columns);
      CAPTURE(c.gap);
      CAPTURE(std::string(name_of(dtype)));
      const Problem p = make_problem(dtype, c);
      const Forward forward = run_forward(Context::cpu(), p);
      const double rstd = largest(forward.rstd);
      for (Target target : {Target::fresh, Target::accumulate, Target::in_place}) {
        CAPTURE(static_cast<int>(target));
        const bool accumulate = target == Target::accumulate;
        const Backward got = run_backward(device_context(), p, forward, target, accumulate);
        const Backward expected = run_backward(Context::cpu(), p, forward, target, accumulate);
        check_agree("grad_input", got.input, expected.input, 2e-6, 4e-6 * (1 + rstd));
        check_agree("grad_weight", got.weight, expected.weight, 4e-6, 2e-5);
        if (c.bias) check_agree("grad_bias", got.bias, expected.bias, 2e-6, 1e-5);
        check_input_sums(got, accumulate);
        check_input_sums(expected, accumulate);
      }
    }
  }
}

TEST_CASE("layernorm_backward on CUDA: sums over many rows, the same bits in every run" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Problem p = make_problem(DType::bf16, {20000, 768});
  const Forward forward = run_forward(Context::cpu(), p);
  const Backward expected = run_backward(Context::cpu(), p, forward, Target::fresh, false);
  const Backward first = run_backward(device_context(), p, forward, Target::fresh, false);
  check_agree("grad_input", first.input, expected.input, 2e-6, 2e-5);
  check_agree("grad_weight", first.weight, expected.weight, 1e-5, 2e-4);  // 20000 terms of up to 4
  check_agree("grad_bias", first.bias, expected.bias, 1e-5, 2e-4);
  check_input_sums(first, false);
  for (int run = 0; run < 5; ++run) {
    const Backward again = run_backward(device_context(), p, forward, Target::fresh, false);
    CHECK(again.input.bytes() == first.input.bytes());
    CHECK(again.weight.bytes() == first.weight.bytes());
    CHECK(again.bias.bytes() == first.bias.bytes());
    CHECK(again.input_sums.bytes() == first.input_sums.bytes());
  }
}

TEST_CASE("layernorm on CUDA: no rows" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Context context = device_context();
  for (bool accumulate : {false, true}) {
    const Problem p = make_problem(DType::fp32, {0, 3});
    const Forward forward{HostTensor(), HostTensor(), HostTensor(DType::fp32, {0}), HostTensor(DType::fp32, {0})};
    const Backward got = run_backward(context, p, forward, Target::fresh, accumulate);
    const HostTensor zeros = HostTensor::of(DType::fp32, {0, 0, 0});
    CHECK(got.weight.values() == (accumulate ? HostTensor::random(DType::fp32, {3}, 37) : zeros).values());
    (void)run_forward(context, p);
  }
}
