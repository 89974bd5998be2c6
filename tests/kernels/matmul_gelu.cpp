// GELU in the epilogue of a product and gelu_forward give the same bits: a model may keep either of the two and make
// the other again.
#include <greyhound/kernels/elementwise.h>
#include <greyhound/kernels/matmul.h>
#include <tests/cuda_support.h>

#include <array>

using namespace greyhound;
using namespace greyhound::cuda_test;

namespace {

// Whole tiles of a library, odd columns, odd depths (twice as deep as one block of them), a single row.
const std::vector<std::array<std::int64_t, 3>> sizes = {{64, 96, 40}, {33, 100, 12}, {9, 17, 1030}, {1, 48, 12}};

}  // namespace

TEST_CASE_ON_EACH_BACKEND("matmul: its GELU has the bits of gelu_forward") {
  const Context context = test::test_context(2);
  for (const DType dtype : {DType::fp32, DType::bf16}) {
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
        CHECK(out.back().bytes() == expected.back().bytes());
        CHECK(alone.back().bytes() == expected.back().bytes());
        CHECK(pre_activation.back().bytes() == before.back().bytes());
      }
    }
  }
}
