// Products with GELU or its slope on CUDA: which shapes a kernel makes in one, seen in a graph, and that what it makes
// is right.
#include <greyhound/kernels/matmul_gelu.h>
#include <tests/cuda_support.h>
#include <tests/kernels/hopper_kernels.h>
#include <tests/reference/elementwise.h>

#include <utility>

using namespace greyhound;
using namespace greyhound::cuda_test;
using test::Graph;
using test::Stream;

namespace {

struct Case {
  const char* what;
  std::int64_t m, n, k;
  bool one_kernel = true;            // on Hopper
  std::int64_t gap = 0, offset = 0;  // row stride beyond the row's length; elements before the first
  bool bias = true, more = true;     // more: the value before GELU is kept; or the bias sum accumulates
  DType dtype = DType::bf16, bias_dtype = DType::bf16;
  bool large = false;  // not for the CPU in place of a device
};

// A tile has 128 x 256 elements; from 528 tiles on a product is for the kernel.
const Case cases[] = {
    {"one row", 1, 256, 768, false},
    {"few rows", 64, 3072, 72, false},
    {"a tile and a row", 129, 320, 8, false},
    {"516 tiles", 5500, 3072, 72, false},
    {"528 tiles, few depths", 67500, 8, 8},
    {"528 tiles, of which columns end within one", 33700, 320, 72},
    {"528 tiles, of which rows end within one", 5600, 3072, 72},
    {"nothing optional", 33700, 264, 8, true, 0, 0, false, false},
    {"rows apart", 33700, 320, 72, true, 8, 8},
    {"rows of no alignment", 33700, 320, 72, false, 4},
    {"a first row of no alignment", 33700, 320, 72, false, 8, 4},
    {"depths of no alignment", 33700, 320, 68, false, 4},
    {"fp32", 33700, 320, 72, false, 0, 0, true, true, DType::fp32, DType::fp32},
    {"a bias in fp32", 33700, 320, 72, true, 0, 0, true, true, DType::bf16, DType::fp32},
    {"GPT-2 124M, 16 rows of 1024 tokens", 16384, 3072, 768, true, 0, 0, true, true, DType::bf16, DType::bf16, true},
};

// Elements as float, row by row.
std::vector<float> floats(HostTensor host) {
  const Tensor view = host.view(host.bytes().data(), Device::cpu());
  std::vector<float> all;
  all.reserve(static_cast<std::size_t>(view.elements()));
  dispatch(host.dtype(), "test", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (std::int64_t r = 0; r < view.rows(); ++r) {
      for (std::int64_t c = 0; c < view.columns(); ++c) all.push_back(to_float(view.row<T>(r)[c]));
    }
  });
  return all;
}

// Uniform in (-size, size), quickly.
HostTensor random(const Case& c, std::int64_t rows, std::int64_t columns, std::uint64_t seed, float size) {
  HostTensor host(c.dtype, {rows, columns}, columns + c.gap, c.offset);
  const Tensor view = host.view(host.bytes().data(), Device::cpu());
  std::uint64_t state = seed;
  dispatch(c.dtype, "test", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < columns; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        view.row<T>(r)[i] = from_float<T>(size * (static_cast<float>(state >> 40) / (1 << 23) - 1.0f));
      }
    }
  });
  return host;
}

// Rows whose products are made again in fp64: at the edges of tiles and of their halves, the last ones, some between.
std::vector<std::int64_t> looked_at(std::int64_t rows) {
  std::vector<std::int64_t> some;
  for (std::int64_t row : {std::int64_t{0}, std::int64_t{1}, std::int64_t{63}, std::int64_t{64}, std::int64_t{127},
                           std::int64_t{128}, rows / 3, rows / 2, rows - 129, rows - 2, rows - 1}) {
    if (row >= 0 && row < rows) some.push_back(row);
  }
  return some;
}

// sum and sum of magnitudes of a[row] times a column of w, whose elements are `step` apart.
struct Exact {
  double value = 0, size = 0;
  Exact(const float* a, const float* w, std::int64_t step, std::int64_t depth) {
    for (std::int64_t d = 0; d < depth; ++d) {
      value += static_cast<double>(a[d]) * w[d * step];
      size += std::fabs(static_cast<double>(a[d]) * w[d * step]);
    }
  }
};

constexpr double sum_error = 4e-6;  // of fp32 sums, in sums of magnitudes
constexpr float weight_size = 0.125f;

// Half an ulp of a product, and what its sum is off by.
double product_error(DType dtype, const Exact& exact) {
  return 0.51 * ulp(dtype, exact.value) + sum_error * exact.size;
}

// The call's results are the same in five runs, the last of them by a graph, which has so many of these kernels.
// `prepare` sets what the call adds to.
template <class Prepare, class Call, class Results>
void check_runs(const Stream& stream, const Context& context, std::int64_t kernels, const Prepare& prepare,
                const Call& call, const Results& results) {
  const auto run = [&](const auto& enqueue) {
    prepare();
    enqueue();
    context.synchronize();
    return results();
  };
  const auto first = run(call);
  std::int64_t others = 0;
  for (int again = 1; again < 4; ++again) others += run(call) == first ? 0 : 1;
  Graph graph(stream, [&] { call(); });
  CHECK(graph.only_device_work());
  if (test::has_hopper_kernels()) CHECK(test::count_names(graph.kernel_names(), "gelu_product_kernel") == kernels);
  others += run([&] { graph.launch(); }) == first ? 0 : 1;
  CHECK(others == 0);
}

}  // namespace

TEST_CASE("products with GELU on CUDA" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (const Case& c : cases) {
    if (c.large && test::cpu_as_device()) continue;
    INFO(std::string(c.what));
    const Stream stream;
    const Context context = device_context(static_cast<cudaStream_t>(stream));
    const HostTensor host_a = random(c, c.m, c.k, 1, 1), host_w = random(c, c.n, c.k, 2, weight_size);
    const HostTensor host_bias = c.bias ? HostTensor::random(c.bias_dtype, {c.n}, 3, -0.5, 0.5) : HostTensor();
    const HostTensor blank(c.dtype, {c.m, c.n}, c.n + c.gap, c.offset);
    const Placed a(context, host_a), w(context, host_w), bias(context, host_bias), out(context, blank),
        pre(context, c.more ? blank : HostTensor()), expected(context, blank);
    Matmul args;
    args.a = a;
    args.b = w;
    args.transpose_b = true;
    args.bias = bias;
    args.activation = Activation::gelu;
    args.out = out;
    args.pre_activation = pre;
    GuardedWorkspace scratch(context, matmul_workspace_bytes(context, args));
    check_runs(
        stream, context, c.one_kernel ? 1 : 0, [] {}, [&] { matmul(context, args, scratch.workspace); },
        [&] { return std::pair(out.back().bytes(), pre.back().bytes()); });
    CHECK(scratch.intact());
    const HostTensor got = out.back();
    CHECK(got.intact());
    if (c.more) {
      CHECK(pre.back().intact());
      // Without it the bits are the same.
      args.out = expected;
      args.pre_activation = {};
      matmul(context, args, scratch.workspace);
      CHECK(expected.back().bytes() == got.bytes());
      gelu_forward(context, {pre, expected});
      CHECK(expected.back().bytes() == got.bytes());
    }
    const std::vector<float> fa = floats(host_a), fw = floats(host_w), fout = floats(got);
    const std::vector<float> fpre = c.more ? floats(pre.back()) : std::vector<float>();
    std::int64_t wrong = 0;
    for (const std::int64_t row : looked_at(c.m)) {
      for (std::int64_t j = 0; j < c.n; ++j) {
        Exact exact(&fa[row * c.k], &fw[j * c.k], 1, c.k);
        double added = c.bias ? host_bias.get(j) : 0;
        double bound = sum_error * (exact.size + std::fabs(added));
        if (c.bias && c.bias_dtype != c.dtype) bound += 0.51 * ulp(c.dtype, added);
        exact.value += added;
        bound += 0.51 * ulp(c.dtype, exact.value) + 0.01 * bound;
        const double want = reference::gelu(exact.value);
        const std::int64_t at = row * c.n + j;
        if (c.more && !(std::fabs(fpre[at] - exact.value) <= bound)) ++wrong;
        if (!(std::fabs(fout[at] - want) <= 1.2 * bound + 1.01 * ulp(c.dtype, want) + 1e-5 * std::fabs(want))) ++wrong;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("products with GELU's slope on CUDA" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (const Case& c : cases) {
    if (c.large && test::cpu_as_device()) continue;
    INFO(std::string(c.what));
    const Stream stream;
    const Context context = device_context(static_cast<cudaStream_t>(stream));
    const HostTensor host_a = random(c, c.m, c.k, 1, 1), host_w = random(c, c.k, c.n, 2, weight_size),
                     host_pre = random(c, c.m, c.n, 3, 4);
    const HostTensor before = c.bias ? HostTensor::random(DType::fp32, {c.n}, 4) : HostTensor();
    const HostTensor blank(c.dtype, {c.m, c.n}, c.n + c.gap, c.offset);
    const Placed a(context, host_a), w(context, host_w), pre(context, host_pre), out(context, blank),
        bias(context, before), two(context, blank), product_alone(context, blank);
    const MatmulGeluBackward args{a, w, pre, out, bias, c.more};
    GuardedWorkspace scratch(context, matmul_gelu_backward_workspace_bytes(context, args));
    check_runs(
        stream, context, c.one_kernel ? 1 : 0,
        [&] {
          if (c.bias) bias.upload(before);
        },
        [&] { matmul_gelu_backward(context, args, scratch.workspace); },
        [&] { return std::pair(out.back().bytes(), bias.back().bytes()); });
    CHECK(scratch.intact());
    const HostTensor got = out.back();
    CHECK(got.intact());
    CHECK(pre.back().bytes() == host_pre.bytes());

    Matmul product;
    product.a = a;
    product.b = w;
    product.out = product_alone;
    matmul(context, product, scratch.workspace);
    gelu_backward(context, {product_alone, pre, two, {}, false}, scratch.workspace);
    const std::vector<float> fa = floats(host_a), fw = floats(host_w), fpre = floats(host_pre), fout = floats(got),
                             fx = floats(product_alone.back()), ftwo = floats(two.back());
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < fout.size(); ++i) {  // the two calls may round another way, an ulp of the product apart
      const double bound = 1.2 * ulp(c.dtype, fx[i]) + 2 * ulp(c.dtype, ftwo[i]) + sum_error * weight_size * c.k;
      if (!(std::fabs(fout[i] - ftwo[i]) <= bound)) ++wrong;
    }
    CHECK(wrong == 0);
    for (const std::int64_t row : looked_at(c.m)) {
      for (std::int64_t j = 0; j < c.n; ++j) {
        const Exact exact(&fa[row * c.k], &fw[j], c.n, c.k);
        const std::int64_t at = row * c.n + j;
        const double slope = reference::gelu_slope(fpre[at]), want = exact.value * slope;
        const double bound = std::fabs(slope) * 1.01 * product_error(c.dtype, exact) + 1.01 * ulp(c.dtype, want) +
                             1e-5 * std::fabs(exact.value);
        if (!(std::fabs(fout[at] - want) <= bound)) ++wrong;
      }
    }
    CHECK(wrong == 0);
    if (!c.bias) continue;
    std::vector<double> sums(static_cast<std::size_t>(c.n)), sizes(sums.size());
    for (std::size_t i = 0; i < fout.size(); ++i) {
      sums[i % sums.size()] += fout[i];
      sizes[i % sums.size()] += std::fabs(fout[i]);
    }
    const std::vector<float> fsums = floats(bias.back());
    for (std::size_t j = 0; j < sums.size(); ++j) {
      const double start = c.more ? before.get(static_cast<std::int64_t>(j)) : 0;
      if (!(std::fabs(fsums[j] - (sums[j] + start)) <= 1e-5 * (sizes[j] + std::fabs(start)))) ++wrong;
    }
    CHECK(wrong == 0);
  }
}
