// The CUDA products against fp64.
#include <greyhound/kernels/matmul.h>
#include <tests/cuda_support.h>
#include <tests/reference/matmul.h>

#include <array>
#include <string>

using namespace greyhound;
using namespace greyhound::cuda_test;

namespace {

struct Case {
  std::string name;
  DType dtype = DType::fp32, out_dtype = DType::fp32, bias_dtype = DType::fp32;
  std::int64_t m = 64, n = 96, k = 40, gap = 0, offset = 0;  // gap: row stride beyond the row's length
  bool transpose_a = false, transpose_b = false, bias = false, gelu = false, pre_activation = false, factor = false;
  float alpha = 1, beta = 0;
  bool aligned_rows = false;  // strides rounded up to 8 elements
};

void check(const Case& c) {
  CAPTURE(c.name);
  CAPTURE(std::string(name_of(c.dtype)));
  CAPTURE(std::string(name_of(c.out_dtype)));
  CAPTURE(c.transpose_a);
  CAPTURE(c.transpose_b);
  CAPTURE(c.m);
  CAPTURE(c.n);
  CAPTURE(c.k);
  const Context context = Context::cuda();
  const auto stride = [&](std::int64_t columns) {
    return c.aligned_rows ? (columns + c.gap + 7) / 8 * 8 : columns + c.gap;
  };
  const auto matrix = [&](DType dtype, std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
    return HostTensor::random(dtype, {rows, columns}, seed, -1, 1, stride(columns), c.offset);
  };
  const HostTensor a = c.transpose_a ? matrix(c.dtype, c.k, c.m, 1) : matrix(c.dtype, c.m, c.k, 1);
  const HostTensor b = c.transpose_b ? matrix(c.dtype, c.n, c.k, 2) : matrix(c.dtype, c.k, c.n, 2);
  // With beta = 0 what stands in `out` (NaN) must not be read.
  const HostTensor blank(c.out_dtype, {c.m, c.n}, stride(c.n), c.offset);
  const HostTensor before = c.beta == 0 ? blank : matrix(c.out_dtype, c.m, c.n, 3);
  const HostTensor bias = c.bias ? HostTensor::random(c.bias_dtype, {c.n}, 4) : HostTensor();
  const HostTensor factor = c.factor ? HostTensor::of(DType::fp32, {0.75}) : HostTensor();

  const Placed device_a(context, a), device_b(context, b), out(context, before), device_bias(context, bias),
      pre(context, c.pre_activation ? blank : HostTensor()), device_factor(context, factor);
  Matmul args;
  args.a = device_a;
  args.b = device_b;
  args.out = out;
  args.transpose_a = c.transpose_a;
  args.transpose_b = c.transpose_b;
  args.alpha = c.alpha;
  args.beta = c.beta;
  args.bias = device_bias;
  args.activation = c.gelu ? Activation::gelu : Activation::none;
  args.pre_activation = pre;
  args.alpha_factor = device_factor;
  GuardedWorkspace scratch(context, matmul_workspace_bytes(context, args));
  matmul(context, args, scratch.workspace);
  context.synchronize();
  CHECK(scratch.intact());

  const reference::MatmulResult exact =
      reference::matmul(a.values(), b.values(), c.transpose_a, c.transpose_b, c.m, c.n, c.k);
  const HostTensor got = out.back(), got_pre = pre.back();
  CHECK(got.intact());
  if (c.pre_activation) CHECK(got_pre.intact());
  const double alpha = c.alpha * (c.factor ? 0.75 : 1);
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < c.m * c.n; ++i) {
    double value = alpha * exact.values[i], bound = std::fabs(alpha) * exact.bound[i];
    if (c.beta != 0) {
      value += c.beta * before.get(i);
      bound += std::fabs(c.beta * before.get(i));
    }
    if (c.bias) {
      value += bias.get(i % c.n);
      bound += std::fabs(bias.get(i % c.n));
    }
    // fp32 sums, and one rounding to out's dtype; a bias of another dtype is rounded to it first, and GELU reads what
    // was rounded.
    const double rounding = c.out_dtype == DType::fp32 ? 0 : 0.51 * ulp(c.out_dtype, value);
    const bool twice = c.out_dtype != DType::fp32 && (c.gelu || (c.bias && c.bias_dtype != c.out_dtype));
    const double tolerance = 2e-6 * bound + rounding + (twice ? ulp(c.out_dtype, bound) : 0);
    if (c.pre_activation && !(std::fabs(got_pre.get(i) - value) <= tolerance)) ++wrong;
    const double want = c.gelu ? reference::gelu_tanh(value) : value;
    if (std::fabs(got.get(i) - want) <= tolerance * (c.gelu ? 1.2 : 1)) continue;
    if (wrong++ > 0) continue;
    CAPTURE(i);
    CAPTURE(got.get(i));
    CAPTURE(want);
    CHECK(std::fabs(got.get(i) - want) <= tolerance);
  }
  CHECK(wrong == 0);
}

constexpr DType types[][2] = {{DType::fp32, DType::fp32},
                              {DType::bf16, DType::bf16},
                              {DType::bf16, DType::fp32},
                              {DType::fp16, DType::fp16},
                              {DType::fp16, DType::fp32}};

}  // namespace

TEST_CASE("matmul on CUDA: dtypes, orientations, odd shapes, strides and addresses" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (const auto& [dtype, out_dtype] : types) {
    for (const int orientation : {0, 1, 2, 3}) {
      Case c;
      c.dtype = dtype;
      c.out_dtype = out_dtype;
      c.transpose_a = orientation % 2 == 1;
      c.transpose_b = orientation / 2 == 1;
      c.name = "aligned";
      check(c);
      c.name = "odd";
      c.m = 13;
      c.n = 57;
      c.k = 31;
      check(c);
      c.name = "odd, strided and misaligned";
      c.gap = 3;
      c.offset = 1;
      check(c);
      c.name = "one of each";
      c.m = c.n = c.k = 1;
      check(c);
      c.name = "large";
      c.m = 130;
      c.n = 515;
      c.k = 260;
      c.gap = c.offset = 0;
      check(c);
    }
  }
}

TEST_CASE("matmul on CUDA: alpha, beta, bias, gelu and no depth" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (const auto& [dtype, out_dtype] : types) {
    for (const std::int64_t k : {40, 31, 0}) {
      Case c;
      c.dtype = dtype;
      c.out_dtype = out_dtype;
      c.transpose_b = true;
      c.k = k;
      c.gap = k % 2 == 1 ? 1 : 0;
      c.name = "alpha and beta";
      c.alpha = 0.5f;
      c.beta = 2;
      check(c);
      c.name = "alpha from the device";
      c.factor = true;
      check(c);
      c.name = "bias";
      c.alpha = 1;
      c.beta = 0;
      c.factor = false;
      c.bias = true;
      for (const DType bias_dtype : {DType::fp32, dtype}) {
        c.bias_dtype = bias_dtype;
        check(c);
      }
      c.name = "bias and gelu";
      c.gelu = true;
      check(c);
      c.name = "bias, gelu and the value before it";
      c.pre_activation = true;
      check(c);
      c.name = "the value before no activation";
      c.gelu = false;
      check(c);
    }
  }
}

// Where the library takes other kernels, it must still round once, after the bias.
TEST_CASE("matmul on CUDA: bias with odd shapes and addresses" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (const auto& [dtype, out_dtype] : types) {
    for (const bool transpose_b : {false, true}) {
      Case c;
      c.dtype = c.bias_dtype = dtype;
      c.out_dtype = out_dtype;
      c.transpose_b = transpose_b;
      c.bias = true;
      c.name = "odd number of rows";
      c.m = 51;
      check(c);
      c.m = 64;
      c.name = "odd depth";
      c.k = 31;
      check(c);
      c.name = "odd width, aligned rows";
      c.k = 40;
      c.n = 57;
      c.gap = 7;
      check(c);
      c.name = "odd width and depth, aligned rows";
      c.k = 57;
      check(c);
      c.name = "odd rows";
      c.m = 51;
      check(c);
      c.name = "misaligned";
      c.offset = 1;
      check(c);
      c.name = "long odd depth";
      c.offset = c.gap = 0;
      c.m = 16;
      c.n = 64;
      c.k = 4097;
      check(c);
    }
  }
}

// Rows that start at 16 bytes, and lengths that do not end there: the last rows, columns and depths go another way than
// the rest.
TEST_CASE("matmul on CUDA: odd sizes in aligned rows" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  Case c;
  c.aligned_rows = true;
  for (const auto& [dtype, out_dtype] : types) {
    c.dtype = c.bias_dtype = dtype;
    c.out_dtype = out_dtype;
    for (const int orientation : {0, 1, 2, 3}) {
      c.transpose_a = orientation % 2 == 1;
      c.transpose_b = orientation / 2 == 1;
      for (const auto& [m, n, k] : std::initializer_list<std::array<std::int64_t, 3>>{
               {13, 57, 31}, {1, 1, 1}, {7, 9, 15}, {9, 7, 8}, {8, 8, 7}, {65, 131, 517}, {131, 73, 1031}}) {
        c.m = m;
        c.n = n;
        c.k = k;
        c.name = "plain";
        check(c);
        c.name = "alpha, beta";
        c.alpha = 0.5f;
        c.beta = 2;
        check(c);
        c.name = "alpha from the device";
        c.factor = true;
        check(c);
        c.name = "bias, gelu and the value before it";
        c.factor = false;
        c.alpha = 1;
        c.beta = 0;
        c.bias = c.gelu = c.pre_activation = true;
        check(c);
        c.bias = c.gelu = c.pre_activation = false;
      }
    }
  }
}

// The three products of a linear loss over V classes, whose tile of logits has padded rows.
TEST_CASE("matmul on CUDA: any vocabulary" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const std::int64_t vocab : {1, 7, 9, 127, 1031, 50257}) {
      for (const std::int64_t rows : {24, 13}) {
        const std::int64_t hidden = vocab > 10000 ? 24 : 264;
        Case c;
        c.dtype = c.out_dtype = dtype;
        c.aligned_rows = true;
        c.name = "logits";
        c.m = rows;
        c.n = vocab;
        c.k = hidden;
        c.transpose_b = true;
        check(c);
        c.name = "logits with a bias";
        c.bias = true;
        check(c);
        c.bias = c.transpose_b = false;
        c.name = "gradient of the inputs";
        c.n = hidden;
        c.k = vocab;
        c.factor = true;
        check(c);
        c.name = "gradient of the weight";
        c.m = vocab;
        c.k = rows;
        c.transpose_a = true;
        c.out_dtype = DType::fp32;
        c.beta = 1;
        check(c);
        c.out_dtype = dtype;
        check(c);
      }
    }
  }
}

// Wide enough for several blocks of every kernel.
TEST_CASE("matmul on CUDA: odd sizes in many blocks" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (const DType out_dtype : {DType::bf16, DType::fp32}) {
    Case c;
    c.dtype = DType::bf16;
    c.out_dtype = out_dtype;
    c.aligned_rows = true;
    c.name = "last columns, last depths";
    c.m = 301;
    c.n = 15;
    c.k = 1031;
    c.transpose_b = true;
    check(c);
    c.name = "last rows";
    c.m = 15;
    c.n = 1040;
    c.k = 300;
    c.transpose_a = true;
    c.transpose_b = false;
    check(c);
    c.name = "last depths of wide rows";
    c.m = 20;
    c.n = 2056;
    c.k = 39;
    c.transpose_a = false;
    c.beta = 1;
    check(c);
  }
}

TEST_CASE("matmul on CUDA: empty products" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  Case c;
  c.name = "no rows";
  c.m = 0;
  check(c);
  c.name = "no columns";
  c.m = 3;
  c.n = 0;
  check(c);
}
