// The product and GELU's gradient in one call, for shapes for which it is the two calls to the bit on every backend.
// Those that a kernel makes in one are in cuda_gelu_product.cpp.
#include <greyhound/kernels/matmul_gelu.h>
#include <tests/cuda_support.h>
#include <tests/reference/elementwise.h>
#include <tests/reference/matmul.h>

using namespace greyhound;
using namespace greyhound::cuda_test;

namespace {

struct Case {
  std::int64_t m, n, k, gap = 0;  // gap: row stride beyond the row's length
  bool bias = true, accumulate = false;
};

constexpr Case cases[] = {{1, 8, 8},         {64, 96, 40, 0, true, true}, {33, 100, 12, 4},
                          {129, 320, 72},    {9, 17, 103, 3, false},      {200, 256, 72, 8, true, true},
                          {0, 8, 8, 0, true}};

}  // namespace

TEST_CASE_ON_EACH_BACKEND("matmul_gelu_backward: the bits of the two calls, fp64's values") {
  const Context context = test::test_context(2);
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const auto& [m, n, k, gap, with_bias, accumulate] : cases) {
      CAPTURE(name_of(dtype));
      CAPTURE(m);
      CAPTURE(n);
      const HostTensor host_a = HostTensor::random(dtype, {m, k}, 1, -1, 1, k + gap),
                       host_w = HostTensor::random(dtype, {k, n}, 2, -1, 1, n + gap),
                       host_pre = HostTensor::random(dtype, {m, n}, 3, -4, 4, n + gap);
      const HostTensor blank(dtype, {m, n}, n + 2 * gap);
      const HostTensor bias = with_bias ? HostTensor::random(DType::fp32, {n}, 4) : HostTensor();
      const Placed a(context, host_a), w(context, host_w), pre(context, host_pre), out(context, blank),
          two(context, blank), out_bias(context, bias), two_bias(context, bias);
      const MatmulGeluBackward args{a, w, pre, out, out_bias, accumulate};
      GuardedWorkspace scratch(context, matmul_gelu_backward_workspace_bytes(context, args));
      matmul_gelu_backward(context, args, scratch.workspace);
      context.synchronize();
      CHECK(scratch.intact());

      Matmul product;
      product.a = a;
      product.b = w;
      product.out = two;
      GuardedWorkspace more(
          context, std::max(matmul_workspace_bytes(context, product), column_sum_workspace_bytes(context, m, n)));
      matmul(context, product, more.workspace);
      gelu_backward(context, {two, pre, two, two_bias, accumulate}, more.workspace);
      const HostTensor got = out.back();
      CHECK(got.bytes() == two.back().bytes());
      if (with_bias) CHECK(out_bias.back().bytes() == two_bias.back().bytes());

      const reference::MatmulResult exact = reference::matmul(host_a.values(), host_w.values(), false, false, m, n, k);
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < m * n; ++i) {
        const double slope = reference::gelu_slope(host_pre.get(i)), want = exact.values[i] * slope;
        const double product_error = 2e-6 * exact.bound[i] + 0.51 * ulp(dtype, exact.values[i]);
        const double bound = 1.2 * product_error + 1.01 * ulp(dtype, want) + 1e-5 * std::fabs(exact.values[i]);
        if (!(std::fabs(got.get(i) - want) <= bound)) ++wrong;
      }
      CHECK(wrong == 0);
      if (!with_bias) continue;
      const HostTensor sums = out_bias.back();
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = accumulate ? bias.get(j) : 0, size = std::fabs(sum);
        for (std::int64_t i = 0; i < m; ++i) {
          sum += got.get(i * n + j);
          size += std::fabs(got.get(i * n + j));
        }
        if (!(std::fabs(sums.get(j) - sum) <= 1e-6 * size)) ++wrong;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("matmul_gelu_backward: arguments that do not fit") {
  const Context context = Context::cpu(1);
  const Placed a(context, HostTensor(DType::fp32, {4, 8})), w(context, HostTensor(DType::fp32, {8, 6})),
      pre(context, HostTensor(DType::fp32, {4, 6})), out(context, HostTensor(DType::fp32, {4, 6})),
      bias(context, HostTensor(DType::fp32, {6}));
  const MatmulGeluBackward right{a, w, pre, out, bias, false};
  GuardedWorkspace scratch(context, matmul_gelu_backward_workspace_bytes(context, right));
  const auto refused = [&](const char* what, const auto& change) {
    CAPTURE(what);
    MatmulGeluBackward args = right;
    change(args);
    try {
      matmul_gelu_backward(context, args, scratch.workspace);
      FAIL_CHECK("accepted");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::usage);
      CHECK(std::string(error.what()).find(what) != std::string::npos);
    }
  };
  const Placed half(context, HostTensor(DType::bf16, {4, 6})), third(context, HostTensor(DType::fp16, {4, 8}));
  refused("weight", [&](MatmulGeluBackward& args) { args.weight = a; });
  refused("pre_activation", [&](MatmulGeluBackward& args) { args.pre_activation = half; });
  refused("grad_input", [&](MatmulGeluBackward& args) { args.grad_input = a; });
  refused("grad_bias", [&](MatmulGeluBackward& args) { args.grad_bias = half; });
  refused("grad_out", [&](MatmulGeluBackward& args) { args.grad_out = third; });
}
