#include <greyhound/kernels/layernorm.h>

#include <doctest/doctest.h>
#include <greyhound/tests/kernels/buffers.h>
#include <greyhound/tests/reference/elementwise.h>
#include <greyhound/tests/reference/layernorm.h>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

constexpr float eps = 1e-5f;

struct Case {
  std::int64_t rows, columns, gap;
  double offset;  // added to every input
};

const std::vector<Case> cases = {{1, 1, 0, 0},    {1, 2, 0, 0},      {3, 5, 2, 0},        {7, 33, 0, 0},
                                 {65, 768, 1, 0}, {33, 1025, 3, 10}, {1100, 17, 0, -3.5}, {2, 4099, 0, 0}};

std::vector<double> shifted(std::vector<double> values, double offset) {
  for (double& value : values) value += offset;
  return values;
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (double value : values) most = std::max(most, std::fabs(value));
  return most;
}

struct Gradients {
  Buffer input, weight, bias, input_sums;
};

// Forward for mean and rstd, then backward in an exact workspace.
Gradients run_backward(const Context& context, Buffer& grad_out, Buffer& input, Buffer& weight, std::int64_t rows,
                       std::int64_t columns) {
  Buffer mean(DType::fp32, 1, rows), rstd(DType::fp32, 1, rows), out(input.dtype(), rows, columns);
  layernorm_forward(context, {input.tensor(), weight.vector(), {}, out.tensor(), mean.vector(), rstd.vector(), eps});
  Gradients gradients{Buffer(input.dtype(), rows, columns, columns + 1), Buffer(DType::fp32, 1, columns),
                      Buffer(DType::fp32, 1, columns), Buffer(DType::fp32, 1, columns)};
  ExactWorkspace memory(layernorm_backward_workspace_bytes(context, rows, columns));
  Workspace workspace = memory.workspace();
  layernorm_backward(
      context,
      {grad_out.tensor(), input.tensor(), weight.vector(), mean.vector(), rstd.vector(), gradients.input.tensor(),
       false, gradients.weight.vector(), gradients.bias.vector(), false, gradients.input_sums.vector()},
      workspace);
  CHECK(workspace.used() == 0);
  CHECK(memory.intact());
  CHECK(gradients.input.intact());
  CHECK(gradients.weight.intact());
  CHECK(gradients.bias.intact());
  CHECK(gradients.input_sums.intact());
  return gradients;
}

}  // namespace

TEST_CASE("layernorm_forward: odd sizes and strides against fp64") {
  for (const Case& c : cases) {
    for (DType dtype : {DType::fp32, DType::bf16}) {
      for (bool with_bias : {true, false}) {
        CAPTURE(c.rows);
        CAPTURE(c.columns);
        CAPTURE(name_of(dtype));
        const std::int64_t n = c.rows * c.columns;
        Buffer input(dtype, c.rows, c.columns, shifted(random_values(n, 1), c.offset), c.columns + c.gap);
        Buffer weight(dtype, 1, c.columns, random_values(c.columns, 2));
        Buffer bias(dtype, 1, c.columns, random_values(c.columns, 3));
        Buffer out(dtype, c.rows, c.columns, c.columns + c.gap), mean(DType::fp32, 1, c.rows),
            rstd(DType::fp32, 1, c.rows);
        layernorm_forward(Context::cpu(2), {input.tensor(), weight.vector(), with_bias ? bias.vector() : Tensor(),
                                            out.tensor(), mean.vector(), rstd.vector(), eps});
        const reference::LayerNorm exact = reference::layernorm_forward(
            input.values(), weight.values(), with_bias ? bias.values() : std::vector<double>(), c.rows, double{eps});
        check_close(out.values(), exact.out, dtype, 4e-6, 4e-6);  // sums of up to 4099 terms in fp32
        check_close(mean.values(), exact.mean, DType::fp32, 1e-6, 1e-6);
        check_close(rstd.values(), exact.rstd, DType::fp32, 4e-6, 0);
        CHECK(out.intact());
        CHECK(mean.intact());
        CHECK(rstd.intact());
      }
    }
  }
}

TEST_CASE("layernorm: a large common offset destroys neither the statistics nor the gradients") {
  const std::int64_t rows = 5, columns = 1000;
  for (double offset : {1e4, -1e6, 4e6}) {
    CAPTURE(offset);
    Buffer input(DType::fp32, rows, columns, shifted(random_values(rows * columns, 4), offset));
    Buffer weight(DType::fp32, 1, columns, random_values(columns, 5));
    Buffer grad_out(DType::fp32, rows, columns, random_values(rows * columns, 6));
    Buffer out(DType::fp32, rows, columns);
    layernorm_forward(Context::cpu(1), {input.tensor(), weight.vector(), {}, out.tensor(), {}, {}, eps});
    const reference::LayerNorm exact =
        reference::layernorm_backward(grad_out.values(), input.values(), weight.values(), rows, double{eps});
    check_close(out.values(), exact.out, DType::fp32, 1e-6, 2e-6);
    Gradients gradients = run_backward(Context::cpu(1), grad_out, input, weight, rows, columns);
    check_close(gradients.input.values(), exact.grad_input, DType::fp32, 1e-6, 5e-6);
    check_close(gradients.weight.values(), exact.grad_weight, DType::fp32, 1e-6, 1e-5);
  }
}

TEST_CASE("layernorm_forward: a constant row gives the bias, a NaN stays in its row") {
  Buffer input(DType::fp32, 3, 4, {7, 7, 7, 7, 1, std::nan(""), 2, 3, 1, 2, 3, 4}), out(DType::fp32, 3, 4);
  Buffer weight(DType::fp32, 1, 4, {1, 2, 3, 4}), bias(DType::fp32, 1, 4, {5, 6, 7, 8});
  layernorm_forward(Context::cpu(1), {input.tensor(), weight.vector(), bias.vector(), out.tensor(), {}, {}, eps});
  for (std::int64_t j = 0; j < 4; ++j) {
    CHECK(out.get(0, j) == 5 + static_cast<double>(j));
    CHECK(std::isnan(out.get(1, j)));
    CHECK(std::isfinite(out.get(2, j)));
  }
}

TEST_CASE("residual_layernorm: residual_forward and then layernorm_forward, to the bit") {
  const std::int64_t rows = 7, columns = 33;
  const Context context = Context::cpu(2);
  for (DType dtype : {DType::fp32, DType::bf16}) {
    for (float probability : {0.0f, 0.3f}) {
      const Dropout dropout{probability, 77, 5};
      Buffer residual(dtype, rows, columns, random_values(rows * columns, 21), columns + 2);
      Buffer branch(dtype, rows, columns, random_values(rows * columns, 22));
      Buffer weight(dtype, 1, columns, random_values(columns, 23)), bias(dtype, 1, columns, random_values(columns, 24));
      Buffer sum(dtype, rows, columns), out(dtype, rows, columns), mean(DType::fp32, 1, rows);
      Buffer rstd(DType::fp32, 1, rows), fused_out(dtype, rows, columns), fused_mean(DType::fp32, 1, rows);
      Buffer fused_rstd(DType::fp32, 1, rows);
      residual_forward(context, {residual.tensor(), branch.tensor(), sum.tensor(), dropout});
      layernorm_forward(
          context, {sum.tensor(), weight.vector(), bias.vector(), out.tensor(), mean.vector(), rstd.vector(), eps});
      ResidualLayerNorm args{
          residual.tensor(),  branch.tensor(),     residual.tensor(),   dropout, weight.vector(), bias.vector(),
          fused_out.tensor(), fused_mean.vector(), fused_rstd.vector(), eps};
      residual_layernorm(context, args);
      CHECK(residual.values() == sum.values());
      CHECK(fused_out.bytes() == out.bytes());
      CHECK(fused_mean.bytes() == mean.bytes());
      CHECK(fused_rstd.bytes() == rstd.bytes());
      CHECK(residual.intact());
      args.out = args.sum;
      CHECK_THROWS_WITH_AS(residual_layernorm(context, args),
                           "residual_layernorm: out must not be residual, branch or sum", Error);
      args.out = fused_out.tensor();
      args.dropout.probability = 1;
      CHECK_THROWS_AS(residual_layernorm(context, args), Error);
    }
  }
}

TEST_CASE("layernorm_backward: odd sizes and strides against fp64") {
  for (const Case& c : cases) {
    for (DType dtype : {DType::fp32, DType::bf16}) {
      CAPTURE(c.rows);
      CAPTURE(c.columns);
      CAPTURE(name_of(dtype));
      const std::int64_t n = c.rows * c.columns;
      Buffer input(dtype, c.rows, c.columns, shifted(random_values(n, 7), c.offset), c.columns + c.gap);
      Buffer grad_out(dtype, c.rows, c.columns, random_values(n, 8), c.columns + 2 * c.gap);
      Buffer weight(dtype, 1, c.columns, random_values(c.columns, 9));
      Gradients gradients = run_backward(Context::cpu(2), grad_out, input, weight, c.rows, c.columns);
      const reference::LayerNorm exact =
          reference::layernorm_backward(grad_out.values(), input.values(), weight.values(), c.rows, double{eps});
      const double scale = 1 + largest(exact.grad_input);
      check_close(gradients.input.values(), exact.grad_input, dtype, 2e-6, 2e-6 * scale * largest(exact.rstd));
      check_close(gradients.weight.values(), exact.grad_weight, DType::fp32, 2e-6, 1e-5);
      check_close(gradients.bias.values(), exact.grad_bias, DType::fp32, 2e-7, 1e-12);
      check_close(gradients.input_sums.values(), reference::column_sums(gradients.input.values(), c.rows, c.columns),
                  DType::fp32, 2e-7, 1e-6);
    }
  }
}

TEST_CASE("layernorm reference: gradients agree with finite differences") {
  const std::int64_t rows = 2, columns = 5;
  std::vector<double> input = random_values(rows * columns, 10), weight = random_values(columns, 11);
  const std::vector<double> grad_out = random_values(rows * columns, 12);
  const auto loss = [&] {
    const reference::LayerNorm forward = reference::layernorm_forward(input, weight, {}, rows, 1e-5);
    double sum = 0;
    for (std::size_t i = 0; i < grad_out.size(); ++i) sum += grad_out[i] * forward.out[i];
    return sum;
  };
  const reference::LayerNorm exact = reference::layernorm_backward(grad_out, input, weight, rows, 1e-5);
  const auto check = [&](std::vector<double>& variable, const std::vector<double>& gradient) {
    for (std::size_t i = 0; i < variable.size(); ++i) {
      const double saved = variable[i], h = 1e-5;
      variable[i] = saved + h;
      const double above = loss();
      variable[i] = saved - h;
      const double below = loss();
      variable[i] = saved;
      CHECK(gradient[i] == doctest::Approx((above - below) / (2 * h)).epsilon(1e-6).scale(1));
    }
  };
  check(input, exact.grad_input);
  check(weight, exact.grad_weight);
}

TEST_CASE("layernorm_backward: accumulation, in place over grad_out, no bias") {
  const std::int64_t rows = 40, columns = 37;
  const Context context = Context::cpu(2);
  for (DType dtype : {DType::fp32, DType::bf16}) {
    Buffer input(dtype, rows, columns, random_values(rows * columns, 13)), out(dtype, rows, columns);
    Buffer grad_out(dtype, rows, columns, random_values(rows * columns, 14));
    Buffer weight(dtype, 1, columns, random_values(columns, 15));
    Buffer mean(DType::fp32, 1, rows), rstd(DType::fp32, 1, rows);
    Gradients plain = run_backward(context, grad_out, input, weight, rows, columns);
    layernorm_forward(context, {input.tensor(), weight.vector(), {}, out.tensor(), mean.vector(), rstd.vector(), eps});

    ExactWorkspace memory(layernorm_backward_workspace_bytes(context, rows, columns));
    Workspace workspace = memory.workspace();
    Buffer sum(dtype, rows, columns, random_values(rows * columns, 16)), weight_sum(DType::fp32, 1, columns);
    const std::vector<double> before = sum.values();
    Buffer input_sums(DType::fp32, 1, columns);
    for (std::int64_t j = 0; j < columns; ++j) {
      weight_sum.set(0, j, 7);
      input_sums.set(0, j, 11);
    }
    LayerNormBackward args{grad_out.tensor(),
                           input.tensor(),
                           weight.vector(),
                           mean.vector(),
                           rstd.vector(),
                           sum.tensor(),
                           true,
                           weight_sum.vector(),
                           {},
                           true,
                           input_sums.vector()};
    layernorm_backward(context, args, workspace);
    std::vector<double> summed = reference::column_sums(sum.values(), rows, columns);
    for (double& value : summed) value += 11;
    check_close(input_sums.values(), summed, DType::fp32, 2e-7, 1e-6);
    const reference::LayerNorm exact =
        reference::layernorm_backward(grad_out.values(), input.values(), weight.values(), rows, double{eps});
    std::vector<double> expected = exact.grad_input;
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
    check_close(sum.values(), expected, dtype, 1e-6, 1e-5);
    expected = exact.grad_weight;
    for (double& value : expected) value += 7;
    check_close(weight_sum.values(), expected, DType::fp32, 1e-6, 1e-5);

    args.grad_input = Tensor(grad_out.tensor());
    CHECK_THROWS_AS(layernorm_backward(context, args, workspace), Error);
    args.accumulate_input = args.accumulate_weight = false;
    layernorm_backward(context, args, workspace);
    CHECK(grad_out.values() == plain.input.values());
    CHECK(weight_sum.values() == plain.weight.values());
  }
}

TEST_CASE("layernorm_backward: no rows: gradients 0 when overwriting, unchanged when accumulating") {
  const Context context = Context::cpu(2);
  Buffer none(DType::fp32, 0, 3), weight(DType::fp32, 1, 3, {1, 2, 3}), grad(DType::fp32, 1, 3),
      vector(DType::fp32, 1, 0);
  Workspace workspace;
  LayerNormBackward args{none.tensor(),
                         none.tensor(),
                         weight.vector(),
                         vector.vector(),
                         vector.vector(),
                         none.tensor(),
                         false,
                         grad.vector(),
                         {},
                         false};
  layernorm_backward(context, args, workspace);
  CHECK(grad.values() == std::vector<double>{0, 0, 0});
  grad.set(0, 1, 5);
  args.accumulate_weight = true;
  layernorm_backward(context, args, workspace);
  CHECK(grad.values() == std::vector<double>{0, 5, 0});
}

TEST_CASE("layernorm: the same bits for any number of threads, and the workspace is exact") {
  const std::int64_t rows = 301, columns = 129;
  for (DType dtype : {DType::fp32, DType::bf16}) {
    Buffer input(dtype, rows, columns, random_values(rows * columns, 17));
    Buffer grad_out(dtype, rows, columns, random_values(rows * columns, 18));
    Buffer weight(dtype, 1, columns, random_values(columns, 19));
    check_same_bits_for_all_threads([&](const Context& context) {
      const Gradients gradients = run_backward(context, grad_out, input, weight, rows, columns);
      std::vector<unsigned char> bytes = gradients.input.bytes();
      bytes.insert(bytes.end(), gradients.weight.bytes().begin(), gradients.weight.bytes().end());
      bytes.insert(bytes.end(), gradients.bias.bytes().begin(), gradients.bias.bytes().end());
      return bytes;
    });
  }
}

TEST_CASE("layernorm: wrong arguments are refused") {
  const Context context = Context::cpu(1);
  Buffer input(DType::fp32, 2, 3, random_values(6, 20)), weight(DType::fp32, 1, 3), small(DType::fp32, 1, 2);
  Buffer brain(DType::bf16, 1, 3);
  CHECK_THROWS_WITH_AS(layernorm_forward(context, {input.tensor(), small.vector(), {}, input.tensor(), {}, {}, eps}),
                       "layernorm_forward: weight: expected 3 dense elements, got [2] with row stride 2", Error);
  CHECK_THROWS_AS(layernorm_forward(context, {input.tensor(), brain.vector(), {}, input.tensor(), {}, {}, eps}), Error);
  CHECK_THROWS_AS(
      layernorm_forward(context, {input.tensor(), weight.vector(), {}, input.tensor(), small.vector(), {}, eps}),
      Error);
}
