// GELU in the epilogue of a product and gelu_forward give the same bits: a model may keep either of the two and make
// the other again. Where the library makes the activation, it rounds less.
#include <greyhound/kernels/elementwise.h>
#include <greyhound/kernels/matmul.h>
#include <tests/cuda_support.h>

#include <array>

using namespace greyhound;
using namespace greyhound::cuda_test;

namespace {

// Whole tiles of a library, odd columns, odd depths (twice as deep as one block of them), a single row.
const std::vector<std::array<std::int64_t, 3>> sizes = {{64, 96, 40}, {33, 100, 12}, {9, 17, 1030}, {1, 48, 12}};

// Elements of `got` that are not those of `expected`: to the bit, or, where the library made the activation, within
// `bound` of the element.
template <class Bound>
std::int64_t wrong_elements(const HostTensor& got, const HostTensor& expected, bool fused, const Bound& bound) {
  if (!fused) return got.bytes() == expected.bytes() ? 0 : 1;
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < got.shape().elements(); ++i) {
    if (!(std::fabs(got.get(i) - expected.get(i)) <= bound(i))) ++wrong;
  }
  return wrong;
}

// An activation read x where we read the rounded x: half an ulp of x, times a slope of at most 1.13. Both round the
// result. tanh by the hardware is right to 2^-11.
constexpr double hardware_tanh = 1.0 / 2048;

}  // namespace

TEST_CASE_ON_EACH_BACKEND("matmul: its GELU has the bits of gelu_forward") {
  const Context context = test::test_context(2);
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const bool fused = fuses_activation(context, dtype, dtype);
    for (const auto& [m, n, k] : sizes) {
      for (const bool with_bias : {true, false}) {
        CAPTURE(name_of(dtype));
        CAPTURE(n);
        CAPTURE(with_bias);
        const Placed a(context, HostTensor::random(dtype, {m, k}, 1)), b(context, HostTensor::random(dtype, {n, k}, 2)),
            bias(context, with_bias ? HostTensor::random(dtype, {n}, 3) : HostTensor()),
            pre_activation(context, HostTensor(dtype, {m, n})), out(context, HostTensor(dtype, {m, n})),
            alone(context, HostTensor(dtype, {m, n})), before(context, HostTensor(dtype, {m, n})),
            expected(context, HostTensor(dtype, {m, n}));
        Matmul args;
        args.a = a;
        args.b = b;
        args.transpose_b = true;
        args.bias = bias;
        args.activation = Activation::gelu;
        args.out = out;
        args.pre_activation = pre_activation;
        GuardedWorkspace scratch(context, matmul_workspace_bytes(context, args));
        matmul(context, args, scratch.workspace);
        args.out = alone;
        args.pre_activation = {};
        matmul(context, args, scratch.workspace);
        args.out = before;
        args.activation = Activation::none;
        matmul(context, args, scratch.workspace);
        gelu_forward(context, {before, expected});
        const HostTensor want = expected.back(), x = before.back();
        const auto bound = [&](std::int64_t i) {
          return 0.6 * ulp(dtype, x.get(i)) + ulp(dtype, want.get(i)) + hardware_tanh * std::fabs(x.get(i));
        };
        CHECK(wrong_elements(out.back(), want, fused, bound) == 0);
        CHECK(wrong_elements(alone.back(), want, fused, bound) == 0);
        CHECK(wrong_elements(pre_activation.back(), x, fused, [&](std::int64_t i) { return ulp(dtype, x.get(i)); }) ==
              0);
      }
    }
  }
}
