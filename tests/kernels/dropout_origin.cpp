// Masks whose key and rows are read from the device: those of the key and the rows that they stand for.
#include <greyhound/kernels/attention.h>
#include <greyhound/kernels/layernorm.h>
#include <tests/cuda_support.h>

#include <string>
#include <vector>

using namespace greyhound;
using namespace greyhound::cuda_test;

namespace {

constexpr std::uint64_t step_key = 0xfedcba9876543210ull, step_row = (1ull << 33) + 7, stream = 11, row = 40;
constexpr float probability = 0.3f;

// Two ways to ask for one mask. The words of the second come and go on the device.
struct Masks {
  explicit Masks(const Context& context)
      : memory(context, sizeof(DropoutOrigin)),
        given{probability, mix_key(step_key, stream), step_row + row},
        counted{probability, stream, row, static_cast<const DropoutOrigin*>(memory.data())} {
    const DropoutOrigin origin{step_key, step_row};
    memory.upload(&origin);
  }
  DeviceMemory memory;
  Dropout given, counted;
};

// Makes the tensors of a call anew for each of the two, and compares what function(dropout) returns.
template <class Function>
void check_same(const char* name, const Masks& masks, Function&& function) {
  CAPTURE(std::string(name));
  const std::vector<HostTensor> expected = function(masks.given), got = function(masks.counted),
                                kept = function(Dropout{});
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i].bytes() == expected[i].bytes());
    CHECK(got[i].bytes() != kept[i].bytes());
  }
}

}  // namespace

TEST_CASE_ON_EACH_BACKEND("dropout: key and rows counted from an origin on the device") {
  const Context context = test::test_context();
  const Masks masks(context);
  // Whole pieces of 16 bytes, and rows of no alignment.
  for (const std::int64_t columns : {64, 37}) {
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      CAPTURE(columns);
      CAPTURE(std::string(name_of(dtype)));
      const Shape shape{9, columns};
      const Placed input(context, HostTensor::random(dtype, shape, 1)),
          branch(context, HostTensor::random(dtype, shape, 2)),
          weight(context, HostTensor::random(dtype, {columns}, 3));
      check_same("dropout_apply", masks, [&](const Dropout& dropout) {
        const Placed out(context, HostTensor(dtype, shape));
        dropout_apply(context, {input, out, dropout});
        return std::vector<HostTensor>{out.back()};
      });
      check_same("residual_forward", masks, [&](const Dropout& dropout) {
        const Placed out(context, HostTensor(dtype, shape));
        residual_forward(context, {input, branch, out, dropout});
        return std::vector<HostTensor>{out.back()};
      });
      check_same("residual_layernorm", masks, [&](const Dropout& dropout) {
        const Placed sum(context, HostTensor(dtype, shape)), out(context, HostTensor(dtype, shape));
        ResidualLayerNorm args;
        args.residual = input;
        args.branch = branch;
        args.sum = sum;
        args.dropout = dropout;
        args.weight = weight;
        args.out = out;
        residual_layernorm(context, args);
        return std::vector<HostTensor>{sum.back(), out.back()};
      });
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("attention: dropout with key and rows counted from an origin on the device") {
  const Context context = test::test_context();
  const Masks masks(context);
  // Heads of 32 and 128 channels; 37: plain kernels in bf16 too.
  for (const std::int64_t size : {32, 37, 128}) {
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      CAPTURE(size);
      CAPTURE(std::string(name_of(dtype)));
      const std::int64_t batch = 2, heads = 2, tokens = 70, rows = batch * tokens, channels = heads * size;
      const Placed qkv(context, HostTensor::random(dtype, {rows, 3 * channels}, 4)),
          grad_out(context, HostTensor::random(dtype, {rows, channels}, 5));
      GuardedWorkspace memory(context, attention_workspace_bytes(context, dtype, batch, tokens, channels, heads));
      check_same("attention", masks, [&](const Dropout& dropout) {
        const Placed out(context, HostTensor(dtype, {rows, channels})),
            lse(context, HostTensor(DType::fp32, {batch, heads, tokens})),
            grad_qkv(context, HostTensor(dtype, {rows, 3 * channels}));
        attention_forward(context, {qkv, out, lse, batch, heads, dropout}, memory.workspace);
        attention_backward(context, {grad_out, qkv, out, lse, grad_qkv, batch, heads, dropout}, memory.workspace);
        return std::vector<HostTensor>{out.back(), grad_qkv.back()};
      });
    }
  }
}
