#include <greyhound/kernels/matmul.h>

#include <doctest/doctest.h>
#include <greyhound/tests/kernels/buffers.h>
#include <greyhound/tests/reference/matmul.h>

#include <limits>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

struct Dtypes {
  DType in, out;
};
const std::vector<Dtypes> dtypes = {{DType::fp32, DType::fp32},
                                    {DType::bf16, DType::bf16},
                                    {DType::bf16, DType::fp32},
                                    {DType::fp16, DType::fp16},
                                    {DType::fp16, DType::fp32}};

struct Case {
  std::int64_t m, n, k, gap = 0;
  bool transpose_a = false, transpose_b = false;
  double alpha = 1, beta = 0;
  bool bias = false, gelu = false, pre = false;
};

struct Operands {
  Operands(const Case& c, Dtypes d)
      : a(d.in, c.transpose_a ? c.k : c.m, c.transpose_a ? c.m : c.k, random_values(c.m * c.k, 1),
          (c.transpose_a ? c.m : c.k) + c.gap),
        b(d.in, c.transpose_b ? c.n : c.k, c.transpose_b ? c.k : c.n, random_values(c.n * c.k, 2),
          (c.transpose_b ? c.k : c.n) + 2 * c.gap),
        bias(d.in, 1, c.n, random_values(c.n, 3)),
        before(d.out, c.m, c.n, random_values(c.m * c.n, 4), c.n + c.gap),
        out(c.beta == 0 ? Buffer(d.out, c.m, c.n, c.n + c.gap) : before),  // NaN where it is not to be read
        pre(d.out, c.m, c.n, c.n + 3 * c.gap) {}
  Buffer a, b, bias, before, out, pre;
};

Matmul arguments(const Case& c, Operands& o) {
  Matmul args;
  args.a = o.a.tensor();
  args.b = o.b.tensor();
  args.out = o.out.tensor();
  args.transpose_a = c.transpose_a;
  args.transpose_b = c.transpose_b;
  args.alpha = static_cast<float>(c.alpha);
  args.beta = static_cast<float>(c.beta);
  if (c.bias) args.bias = o.bias.vector();
  if (c.gelu) args.activation = Activation::gelu;
  if (c.pre) args.pre_activation = o.pre.tensor();
  return args;
}

void run(const Context& context, const Matmul& args) {
  ExactWorkspace memory(matmul_workspace_bytes(context, args));
  Workspace workspace = memory.workspace();
  matmul(context, args, workspace);
  CHECK(workspace.used() == 0);
  CHECK(memory.intact());
}

// How far a result may be from the exact value: rounding errors of the sum, then of the result's dtype.
double tolerance(DType out, double sum_of_magnitudes, double value) {
  return 4 * 0x1p-23 * sum_of_magnitudes + 0.51 * ulp(out, value);
}

void check_against_reference(const Case& c, Dtypes d) {
  const std::string what =
      concat(name_of(d.in), " to ", name_of(d.out), ", [", c.m, ", ", c.k, "] x [", c.k, ", ", c.n, "], transposed ",
             c.transpose_a, c.transpose_b, ", alpha ", c.alpha, ", beta ", c.beta);
  CAPTURE(what);
  Operands o(c, d);
  run(Context::cpu(2), arguments(c, o));
  CHECK(o.out.intact());
  CHECK(o.pre.intact());
  const reference::MatmulResult exact =
      reference::matmul(o.a.values(), o.b.values(), c.transpose_a, c.transpose_b, c.m, c.n, c.k);
  std::int64_t wrong = 0;
  double worst = 0;
  for (std::int64_t i = 0; i < c.m; ++i) {
    for (std::int64_t j = 0; j < c.n; ++j) {
      const std::size_t e = static_cast<std::size_t>(i * c.n + j);
      const double old = c.beta == 0 ? 0 : c.beta * o.before.get(i, j), bias = c.bias ? o.bias.get(0, j) : 0;
      const double pre = c.alpha * exact.values[e] + old + bias;
      const double bound = std::fabs(c.alpha) * exact.bound[e] + 2 * std::fabs(old) + 2 * std::fabs(bias);
      const double value = c.gelu ? reference::gelu_tanh(pre) : pre;
      // GELU's slope is below 1.2; it reads the rounded value, which may take the result to where numbers stand further
      // apart, and its own fp32 arithmetic loses a few units in the last place of its argument.
      const double rounding = ulp(d.out, pre), largest = std::fabs(value) + rounding;
      const double allowed = c.gelu ? 1.2 * (tolerance(d.out, bound + std::fabs(pre), largest) + 0.51 * rounding)
                                    : tolerance(d.out, bound, value);
      const double error = std::fabs(o.out.get(i, j) - value);
      if (!(error <= allowed)) ++wrong;
      worst = std::max(worst, error / allowed);
      if (c.pre && !(std::fabs(o.pre.get(i, j) - pre) <= tolerance(d.out, bound, pre))) ++wrong;
    }
  }
  CAPTURE(worst);
  CHECK(wrong == 0);
}

std::vector<unsigned char> bytes_after(const Context& context, const Case& c, Dtypes d) {
  Operands o(c, d);
  run(context, arguments(c, o));
  std::vector<unsigned char> bytes = o.out.bytes();
  bytes.insert(bytes.end(), o.pre.bytes().begin(), o.pre.bytes().end());
  return bytes;
}

}  // namespace

TEST_CASE("matmul: sizes, transposes, dtypes, strides and epilogues against fp64") {
  // Odd sizes; one panel and several; sums longer than a block of depth; rows and columns that end inside a panel.
  const std::vector<std::array<std::int64_t, 4>> sizes = {{1, 1, 1, 0},    {2, 3, 5, 1},      {17, 33, 65, 0},
                                                          {64, 96, 16, 3}, {129, 385, 70, 1}, {7, 100, 1300, 5},
                                                          {1, 777, 64, 0}, {270, 1, 31, 2}};
  const std::vector<std::array<double, 2>> scales = {{1, 0}, {0.5, 0}, {1, 1}, {-2, 0.25}, {0, 1}};
  int variant = 0;
  for (const auto& [m, n, k, gap] : sizes) {
    for (int transposes = 0; transposes < 4; ++transposes) {
      for (Dtypes d : dtypes) {
        const auto& [alpha, beta] = scales[static_cast<std::size_t>(variant) % scales.size()];
        check_against_reference({m, n, k, gap, transposes % 2 == 1, transposes >= 2, alpha, beta, variant % 3 != 0,
                                 variant % 4 == 1, variant % 4 == 1 || variant % 7 == 0},
                                d);
        variant += 1 + (variant % 11 == 0);  // so that no dtype always meets the same scale
      }
    }
  }
}

TEST_CASE("matmul: row strides of a multiple of 4 KiB, and depths of several blocks") {
  for (Dtypes d : {Dtypes{DType::fp32, DType::fp32}, Dtypes{DType::bf16, DType::fp32}}) {
    check_against_reference({1024, 24, 520, 0, true, false, 1, 1}, d);
    check_against_reference({24, 1024, 520, 0, false, false, 0.5, 0, true}, d);
    check_against_reference({24, 40, 1024, 0, false, true}, d);
    check_against_reference({24, 40, 1025, 1023, true, false, 1, 1}, d);
  }
}

TEST_CASE("matmul: the fp32 bias of a 16-bit product") {
  const Case c{5, 40, 9, 0, false, true};
  Operands o(c, {DType::bf16, DType::fp32});
  Buffer bias(DType::fp32, 1, 40, random_values(40, 5));
  Matmul args = arguments(c, o);
  args.bias = bias.vector();
  run(Context::cpu(1), args);
  const reference::MatmulResult exact = reference::matmul(o.a.values(), o.b.values(), false, true, 5, 40, 9);
  for (std::int64_t j = 0; j < 40; ++j) {
    CHECK(o.out.get(3, j) == doctest::Approx(exact.values[3 * 40 + j] + bias.get(0, j)).epsilon(1e-5));
  }
}

TEST_CASE("matmul: the same bits for any number of threads") {
  for (const Case& c : {Case{300, 500, 100, 0, false, true, 1, 0, true, true, true},
                        Case{300, 500, 600, 0, true, false, 1, 1}, Case{1, 2000, 64, 0, false, true}}) {
    for (Dtypes d : dtypes) {
      check_same_bits_for_all_threads([&](const Context& context) { return bytes_after(context, c, d); });
    }
  }
}

// Our own product of fp32 packs 4 MiB of a at a time: these have several such pieces in rows, in depth and in both, and
// rows, columns and depths that fill nothing up.
const Case in_pieces[] = {{1601, 37, 900, 0, false, true, 1, 0, true, true, true},
                          {29, 70, 36500, 3, true, false, 1, 0},
                          {770, 19, 1403, 1, false, false, 0.5, 2},
                          {3, 130, 17, 0, true, true, 1, 1},
                          {1, 600, 1000, 2, false, false, 2e-8, 1},
                          {2, 2000, 40, 0, true, false, 1, 3, true, true, true},
                          {2, 300, 130, 1, false, true, 0, 0.5, true},
                          {64, 2000, 8, 0, false, true, 0, 1},
                          {64, 100, 255, 2, false, true, 1, 0, true}};

TEST_CASE("matmul: operands that are packed in several pieces") {
  for (const Case& c : in_pieces) {
    check_against_reference(c, {DType::fp32, DType::fp32});
    check_same_bits_for_all_threads([&](const Context& context) {
      return bytes_after(context, c, {DType::fp32, DType::fp32});
    });
  }
}

// What callers plan who do not know the number of rows: the largest for multiples of 64 rows, and for all of them.
TEST_CASE("matmul: a workspace for many rows does for fewer") {
  const Context context = Context::cpu(2);
  const auto bytes = [&](std::int64_t rows, bool transpose_a) {
    const Case c{rows, 8, 2900, 0, transpose_a};
    Matmul args;
    args.a = Tensor(nullptr, DType::fp32, transpose_a ? Shape{c.k, rows} : Shape{rows, c.k}, Device::cpu());
    args.transpose_a = transpose_a;
    args.b = Tensor(nullptr, DType::fp32, {c.k, c.n}, Device::cpu());
    args.out = Tensor(nullptr, DType::fp32, {rows, c.n}, Device::cpu());
    return matmul_workspace_bytes(context, args);
  };
  for (bool transpose_a : {false, true}) {
    for (std::int64_t all : {1, 2, 3, 40, 63, 64, 100, 257, 640, 999}) {
      std::size_t planned = bytes(all, transpose_a);
      for (std::int64_t rows = 64; rows < all; rows += 64) planned = std::max(planned, bytes(rows, transpose_a));
      for (std::int64_t rows = 1; rows < all; ++rows) CHECK(bytes(rows, transpose_a) <= planned);
    }
  }
}

TEST_CASE("matmul: sizes of zero") {
  const Context context = Context::cpu(2);
  for (Dtypes d : dtypes) {
    check_against_reference({3, 5, 0, 0, false, true, 1, 0, true}, d);  // bias alone, over NaN
    check_against_reference({3, 5, 0, 0, true, false, 1, 0.5, false}, d);
    check_against_reference({0, 5, 4}, d);
    check_against_reference({3, 0, 4}, d);
  }
}

TEST_CASE("matmul: NaN and infinity go where IEEE arithmetic takes them, and nowhere else") {
  for (std::int64_t k : {40, 600}) {
    for (bool transpose_a : {false, true}) {
      for (double bad : {not_a_number, HUGE_VAL}) {
        for (double alpha : {1.0, 0.0}) {
          CAPTURE(k);
          CAPTURE(bad);
          CAPTURE(alpha);
          const Case c{50, 130, k, 0, transpose_a, true, alpha, 0};
          Operands o(c, {DType::fp32, DType::fp32});
          if (transpose_a) {
            o.a.set(7, 20, bad);
          } else {
            o.a.set(20, 7, bad);
          }
          o.b.set(9, 7, 0.0);  // times infinity: NaN
          run(Context::cpu(1), arguments(c, o));
          for (std::int64_t i = 0; i < c.m; ++i) {
            for (std::int64_t j = 0; j < c.n; ++j) {
              const double value = o.out.get(i, j);
              const bool finite = std::isfinite(value);
              if (finite != (i != 20)) CHECK(finite == (i != 20));
              if (i == 20 && (std::isnan(bad) || alpha == 0 || j == 9) && !std::isnan(value)) CHECK(std::isnan(value));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("matmul: pointers aligned to their element only give the bits of aligned ones") {
  for (Dtypes d : dtypes) {
    const std::int64_t m = 33, n = 70, k = 50;
    const auto values_a = random_values(m * k, 1), values_b = random_values(n * k, 2);
    std::vector<std::vector<double>> results;
    for (std::int64_t offset : {0, 1}) {
      Buffer a(d.in, m * k + offset, 1), b(d.in, n * k + offset, 1), out(d.out, m * n + offset, 1);
      for (std::int64_t i = 0; i < m * k; ++i) a.set(offset + i, 0, values_a[i]);
      for (std::int64_t i = 0; i < n * k; ++i) b.set(offset + i, 0, values_b[i]);
      Matmul args;
      args.a = a.vector().slice(offset, {m, k});
      args.b = b.vector().slice(offset, {n, k});
      args.out = out.vector().slice(offset, {m, n});
      args.transpose_b = true;
      run(Context::cpu(2), args);
      std::vector<double> result = out.values();
      results.emplace_back(result.begin() + offset, result.end());
    }
    CHECK(results[0] == results[1]);
  }
}

TEST_CASE("matmul: mistakes of the caller are named") {
  const Case c{4, 6, 5};
  const Context context = Context::cpu(1);
  Workspace none;
  auto message = [&](auto&& change) {
    Operands o(c, {DType::bf16, DType::fp32});
    Matmul args = arguments(c, o);
    Buffer other(DType::fp16, 4, 7);
    change(args, other);
    try {
      matmul(context, args, none);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  CHECK(message([](Matmul& args, Buffer&) { args.transpose_b = true; }) ==
        "matmul: a [4, 5] x b [5, 6] transposed does not give out [4, 6]");
  CHECK(message([](Matmul& args, Buffer& other) { args.out = other.tensor(); }).find("[4, 7]") != std::string::npos);
  CHECK(message([](Matmul& args, Buffer&) { args.b.dtype = DType::fp32; }) ==
        "matmul: b: expected bf16 as a has, got fp32");
  CHECK(message([](Matmul& args, Buffer&) { args.out.dtype = DType::fp16; }) ==
        "matmul: out: expected bf16 or fp32, got fp16");
  CHECK(message([](Matmul& args, Buffer& other) { args.bias = other.vector(); }).find("matmul: bias") == 0);
  CHECK(message([](Matmul& args, Buffer& other) { args.pre_activation = other.tensor(); }).find("pre_activation") !=
        std::string::npos);
  CHECK(message([](Matmul& args, Buffer&) { args.a.device = Device::cuda(0); }).find("cuda:0") != std::string::npos);
  CHECK(message([](Matmul&, Buffer&) {}).find("workspace") != std::string::npos);
}

TEST_CASE("matmul: the library is named") {
  const std::string library = matmul_library(Context::cpu(1));
  MESSAGE(library);
  CHECK((library.find("oneDNN") == 0 || library.find("built-in (") == 0));
}

TEST_CASE("matmul: panels of the sizes that models have" * doctest::test_suite("slow")) {
  for (Dtypes d : {Dtypes{DType::fp32, DType::fp32}, Dtypes{DType::bf16, DType::bf16}}) {
    check_against_reference({256, 2304, 768, 0, false, true, 1, 0, true}, d);
    check_against_reference({768, 3072, 256, 0, true, false, 1, 1}, d);
    check_against_reference({256, 768, 3072, 0, false, false}, d);
  }
}
