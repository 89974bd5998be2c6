#include <greyhound/kernels/elementwise.h>

#include <doctest/doctest.h>
#include <greyhound/tests/kernels/buffers.h>
#include <greyhound/tests/reference/elementwise.h>

#include <limits>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

Workspace no_workspace;  // for gelu_backward without a bias

constexpr double infinity = std::numeric_limits<double>::infinity();

const std::vector<std::pair<std::int64_t, std::int64_t>> odd_sizes = {{1, 1}, {3, 5}, {7, 33}, {2, 2049}, {65, 129}};

// Every finite bf16 value between -limit and limit.
std::vector<double> all_bf16(float limit) {
  std::vector<double> values;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = to_float(bf16{static_cast<std::uint16_t>(bits)});
    if (std::fabs(value) <= limit) values.push_back(value);
  }
  return values;
}

}  // namespace

TEST_CASE("gelu_forward: every bf16 value is within one bf16 ulp, tails included") {
  const std::vector<double> x = all_bf16(1e30f);
  const std::int64_t n = static_cast<std::int64_t>(x.size());
  for (DType dtype : {DType::bf16, DType::fp32}) {
    CAPTURE(name_of(dtype));
    Buffer input(dtype, 1, n, x), out(dtype, 1, n);
    gelu_forward(Context::cpu(2), {input.tensor(), out.tensor()});
    std::vector<double> exact;
    for (double value : x) exact.push_back(reference::gelu(value));
    check_close(out.values(), exact, dtype, 3e-5, 1e-44);  // exp's argument is up to 100, rounded to 2^-24 of that
    CHECK(out.intact());
  }
}

TEST_CASE("gelu_backward: every bf16 value is within one bf16 ulp") {
  const std::vector<double> x = all_bf16(1e30f);
  const std::int64_t n = static_cast<std::int64_t>(x.size());
  for (DType dtype : {DType::bf16, DType::fp32}) {
    CAPTURE(name_of(dtype));
    Buffer input(dtype, 1, n, x), grad_out(dtype, 1, n, std::vector<double>(x.size(), 1.5)), grad_input(dtype, 1, n);
    gelu_backward(Context::cpu(2), {grad_out.tensor(), input.tensor(), grad_input.tensor()}, no_workspace);
    std::vector<double> exact;
    for (double value : x) exact.push_back(1.5 * (std::fabs(value) > 100 ? value > 0 : reference::gelu_slope(value)));
    check_close(grad_input.values(), exact, dtype, 3e-5,
                dtype == DType::bf16 ? 1e-12 : 2e-7);  // terms cancel near -0.75
  }
}

TEST_CASE("gelu reference: slope agrees with finite differences") {
  for (double x = -8; x <= 8; x += 0.37) {
    const double h = 1e-5;
    const double slope = (reference::gelu(x + h) - reference::gelu(x - h)) / (2 * h);
    CHECK(reference::gelu_slope(x) == doctest::Approx(slope).epsilon(1e-7).scale(1));
    // The formula as the header states it.
    const double u = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
    CHECK(reference::gelu(x) == doctest::Approx(0.5 * x * (1 + std::tanh(u))).epsilon(1e-9).scale(1));
  }
}

TEST_CASE("gelu: non-finite input stays visible, and only where it is") {
  const double nan = std::nan("");
  Buffer input(DType::fp32, 1, 5, {nan, infinity, 1, -1, 0}), out(DType::fp32, 1, 5);
  gelu_forward(Context::cpu(1), {input.tensor(), out.tensor()});
  CHECK(std::isnan(out.get(0, 0)));
  CHECK(out.get(0, 1) == infinity);
  CHECK(out.get(0, 2) == doctest::Approx(reference::gelu(1)));
  CHECK(out.get(0, 4) == 0);
  Buffer ones(DType::fp32, 1, 5, {1, 1, 1, 1, nan});
  gelu_backward(Context::cpu(1), {ones.tensor(), input.tensor(), out.tensor()}, no_workspace);
  CHECK(std::isnan(out.get(0, 0)));
  CHECK(out.get(0, 1) == 1);
  CHECK(std::isnan(out.get(0, 4)));
}

TEST_CASE("gelu: odd sizes, row strides and in place give the same bits as a dense copy") {
  for (auto [rows, columns] : odd_sizes) {
    for (DType dtype : {DType::fp32, DType::bf16}) {
      CAPTURE(columns);
      const std::vector<double> x = random_values(rows * columns, 1), g = random_values(rows * columns, 2);
      Buffer dense(dtype, rows, columns, x), out(dtype, rows, columns), grad(dtype, rows, columns, g);
      Buffer strided(dtype, rows, columns, x, columns + 3), strided_grad(dtype, rows, columns, g, columns + 1);
      Buffer grad_input(dtype, rows, columns);
      const Context context = Context::cpu(2);
      gelu_forward(context, {dense.tensor(), out.tensor()});
      gelu_backward(context, {grad.tensor(), dense.tensor(), grad_input.tensor()}, no_workspace);
      gelu_backward(context, {strided_grad.tensor(), strided.tensor(), strided_grad.tensor()},
                    no_workspace);  // in place
      CHECK(strided_grad.values() == grad_input.values());
      gelu_forward(context, {strided.tensor(), strided.tensor()});
      CHECK(strided.values() == out.values());
      CHECK(strided.intact());
      CHECK(strided_grad.intact());
      CHECK(out.intact());
    }
  }
}

TEST_CASE("softcap: every bf16 value, and what is not finite") {
  const std::vector<double> x = all_bf16(1e30f);
  const std::int64_t n = static_cast<std::int64_t>(x.size());
  for (DType dtype : {DType::bf16, DType::fp32}) {
    for (const float cap : {0.5f, 30.0f}) {
      Buffer input(dtype, 1, n, x), out(dtype, 1, n);
      softcap(Context::cpu(2), {input.tensor(), out.tensor(), cap});
      std::vector<double> exact;
      for (double value : x) exact.push_back(cap * std::tanh(value / cap));
      check_close(out.values(), exact, dtype, 5e-7, 1e-43);
      softcap(Context::cpu(2), {input.tensor(), input.tensor(), cap});
      CHECK(input.values() == out.values());
    }
  }
  Buffer input(DType::fp32, 1, 3, {infinity, -infinity, std::nan("")}), out(DType::fp32, 1, 3);
  softcap(Context::cpu(1), {input.tensor(), out.tensor(), 2.0f});
  CHECK(out.get(0, 0) == infinity);
  CHECK(out.get(0, 1) == -infinity);
  CHECK(std::isnan(out.get(0, 2)));
  CHECK_THROWS_WITH_AS(softcap(Context::cpu(1), {input.tensor(), out.tensor(), 0.0f}),
                       "softcap: expected a cap above 0, got 0", Error);
}

TEST_CASE("residual_forward: sum, in place over either input, with and without dropout") {
  for (auto [rows, columns] : odd_sizes) {
    for (DType dtype : {DType::fp32, DType::bf16}) {
      for (float probability : {0.0f, 0.3f}) {
        CAPTURE(columns);
        CAPTURE(probability);
        const Dropout dropout{probability, 1234567890123ull, 1ull << 40};
        const std::int64_t stride = columns + 5;
        Buffer residual(dtype, rows, columns, random_values(rows * columns, 3));
        Buffer branch(dtype, rows, columns, random_values(rows * columns, 4), stride);
        Buffer out(dtype, rows, columns);
        std::vector<double> exact;
        for (std::int64_t i = 0; i < rows * columns; ++i) {
          const std::int64_t row = i / columns, column = i % columns;
          exact.push_back(residual.get(row, column) +
                          branch.get(row, column) * reference::dropout_factor(dropout, row, column));
        }
        const Context context = Context::cpu(2);
        residual_forward(context, {residual.tensor(), branch.tensor(), out.tensor(), dropout});
        check_close(out.values(), exact, dtype, 3e-7, 4e-7);
        residual_forward(context, {branch.tensor(), branch.tensor(), branch.tensor(), dropout});
        CHECK(branch.intact());
        residual_forward(context, {residual.tensor(), out.tensor(), residual.tensor(), Dropout{}});
        CHECK(residual.intact());
        CHECK(out.intact());
      }
    }
  }
}

TEST_CASE("dropout_apply: keeps what the counters say, whatever the split into rows, and drops even NaN") {
  const std::int64_t rows = 50, columns = 67;
  const Dropout dropout{0.25f, 42, 1000};
  Buffer input(DType::fp32, rows, columns, random_values(rows * columns, 5, 1, 2)), out(DType::fp32, rows, columns);
  const Context context = Context::cpu(2);
  dropout_apply(context, {input.tensor(), out.tensor(), dropout});
  std::int64_t kept = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const double factor = reference::dropout_factor(dropout, row, column);
      CHECK(out.get(row, column) == doctest::Approx(input.get(row, column) * factor).epsilon(1e-6));
      kept += factor != 0;
    }
  }
  const double share = static_cast<double>(kept) / static_cast<double>(rows * columns);
  CHECK(share == doctest::Approx(0.75).epsilon(0.04));

  // Rows 20.. of the same batch, drawn as another micro-batch.
  Buffer part(DType::fp32, 30, columns);
  dropout_apply(context, {input.tensor().row_range(20, 30), part.tensor(), {0.25f, 42, 1020}});
  for (std::int64_t i = 0; i < 30 * columns; ++i) {
    REQUIRE(part.get(i / columns, i % columns) == out.get(20 + i / columns, i % columns));
  }

  Buffer nan(DType::fp32, rows, columns, std::vector<double>(rows * columns, std::nan("")));
  dropout_apply(context, {nan.tensor(), nan.tensor(), dropout});
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    const double factor = reference::dropout_factor(dropout, i / columns, i % columns);
    REQUIRE((factor == 0 ? nan.get(i / columns, i % columns) == 0 : std::isnan(nan.get(i / columns, i % columns))));
  }

  dropout_apply(context, {input.tensor(), out.tensor(), Dropout{}});
  CHECK(out.values() == input.values());
}

TEST_CASE("gelu_backward: the gradient of a bias is its column_sum, to the bit") {
  const Context context = Context::cpu(2);
  const std::vector<std::pair<std::int64_t, std::int64_t>> sizes = {{0, 3}, {1, 1}, {17, 5}, {63, 257}, {1100, 300}};
  for (auto [rows, columns] : sizes) {
    for (DType dtype : {DType::fp32, DType::bf16}) {
      CAPTURE(rows);
      CAPTURE(columns);
      Buffer input(dtype, rows, columns, random_values(rows * columns, 12), columns + 1);
      Buffer grad(dtype, rows, columns, random_values(rows * columns, 13)), alone(dtype, rows, columns);
      Buffer sums(DType::fp32, 1, columns), expected(DType::fp32, 1, columns);
      ExactWorkspace memory(column_sum_workspace_bytes(context, rows, columns));
      Workspace workspace = memory.workspace();
      gelu_backward(context, {grad.tensor(), input.tensor(), alone.tensor()}, workspace);
      for (bool accumulate : {false, true}) {
        Buffer both(dtype, rows, columns);
        gelu_backward(context, {grad.tensor(), input.tensor(), both.tensor(), sums.vector(), accumulate}, workspace);
        column_sum(context, {alone.tensor(), expected.vector(), accumulate}, workspace);
        CHECK(both.values() == alone.values());
        CHECK(sums.bytes() == expected.bytes());
      }
      CHECK(memory.intact());
      CHECK(sums.intact());
    }
  }
}

TEST_CASE("column_sum: fp64 sums, strides, accumulation, exact workspace") {
  const std::vector<std::pair<std::int64_t, std::int64_t>> sizes = {{0, 3}, {1, 1}, {17, 5}, {63, 257}, {1100, 300}};
  for (auto [rows, columns] : sizes) {
    for (DType dtype : {DType::fp32, DType::bf16}) {
      CAPTURE(rows);
      CAPTURE(columns);
      const Context context = Context::cpu(2);
      Buffer input(dtype, rows, columns, random_values(rows * columns, 6), columns + 1);
      Buffer out(DType::fp32, 1, columns);
      ExactWorkspace exact_workspace(column_sum_workspace_bytes(context, rows, columns));
      Workspace workspace = exact_workspace.workspace();
      column_sum(context, {input.tensor(), out.vector(), false}, workspace);
      std::vector<double> exact = reference::column_sums(input.values(), rows, columns);
      check_close(out.values(), exact, DType::fp32, 1e-7, 1e-12);
      column_sum(context, {input.tensor(), out.vector(), true}, workspace);
      for (double& value : exact) value *= 2;
      check_close(out.values(), exact, DType::fp32, 3e-7, 1e-12);
      CHECK(workspace.used() == 0);
      CHECK(exact_workspace.intact());
      CHECK(out.intact());
    }
  }
  const Context context = Context::cpu(1);
  Buffer input(DType::fp32, 100, 3, random_values(300, 7)), out(DType::fp32, 1, 3);
  ExactWorkspace small(column_sum_workspace_bytes(context, 100, 3) - memory_alignment);
  Workspace workspace = small.workspace();
  CHECK_THROWS_AS(column_sum(context, {input.tensor(), out.vector(), false}, workspace), Error);
}

TEST_CASE("cast: every pair of dtypes, with strides") {
  const DType dtypes[] = {DType::fp32, DType::bf16, DType::fp16};
  const std::vector<double> values = random_values(7 * 33, 8, -70000, 70000);
  for (DType from : dtypes) {
    for (DType to : dtypes) {
      CAPTURE(name_of(from));
      CAPTURE(name_of(to));
      Buffer input(from, 7, 33, values, 40), out(to, 7, 33, 34), expected(to, 7, 33, input.values(), 34);
      cast(Context::cpu(2), {input.tensor(), out.tensor()});
      CHECK(out.bytes() == expected.bytes());
    }
  }
}

TEST_CASE("elementwise: the same bits for any number of threads") {
  const std::int64_t rows = 130, columns = 1000;
  for (DType dtype : {DType::fp32, DType::bf16}) {
    const std::vector<double> x = random_values(rows * columns, 9), y = random_values(rows * columns, 10);
    check_same_bits_for_all_threads([&](const Context& context) {
      Buffer input(dtype, rows, columns, x), grad(dtype, rows, columns, y), sums(DType::fp32, 1, columns);
      gelu_backward(context, {grad.tensor(), input.tensor(), grad.tensor()}, no_workspace);
      gelu_forward(context, {input.tensor(), input.tensor()});
      residual_forward(context, {input.tensor(), grad.tensor(), grad.tensor(), {0.1f, 7, 0}});
      ExactWorkspace memory(column_sum_workspace_bytes(context, rows, columns));
      Workspace workspace = memory.workspace();
      column_sum(context, {grad.tensor(), sums.vector(), false}, workspace);
      std::vector<unsigned char> bytes = grad.bytes();
      bytes.insert(bytes.end(), sums.bytes().begin(), sums.bytes().end());
      return bytes;
    });
  }
}

TEST_CASE("elementwise: wrong arguments are refused") {
  const Context context = Context::cpu(1);
  Buffer matrix(DType::fp32, 2, 3, random_values(6, 11)), other(DType::fp32, 3, 2), half(DType::fp16, 2, 3);
  Buffer brain(DType::bf16, 2, 3);
  CHECK_THROWS_WITH_AS(gelu_forward(context, {matrix.tensor(), other.tensor()}),
                       "gelu_forward: out: expected [2, 3], got [3, 2]", Error);
  CHECK_THROWS_WITH_AS(gelu_forward(context, {half.tensor(), half.tensor()}),
                       "gelu_forward: input: expected fp32 or bf16, got fp16", Error);
  CHECK_THROWS_WITH_AS(gelu_forward(context, {matrix.tensor(), brain.tensor()}),
                       "gelu_forward: out: expected fp32, got bf16", Error);
  CHECK_THROWS_AS(gelu_forward(context, {matrix.tensor(), Tensor(nullptr, DType::fp32, {2, 3})}), Error);
  CHECK_THROWS_AS(
      gelu_forward(context, {Tensor(matrix.tensor().data, DType::fp32, {2, 3}, Device::cuda()), matrix.tensor()}),
      Error);
  CHECK_THROWS_AS(residual_forward(context, {matrix.tensor(), matrix.tensor(), matrix.tensor(), {1.0f, 0, 0}}), Error);
  CHECK_THROWS_AS(cast(context, {Tensor(matrix.tensor().data, DType::int32, {2, 3}), matrix.tensor()}), Error);
}
