// Which kernels attention takes on CUDA, and that its calls can be captured in a graph: seen in the graph itself.
#include <greyhound/kernels/attention.h>
#include <tests/cuda_support.h>
#include <tests/kernels/hopper_kernels.h>

#include <string>

using namespace greyhound;
using namespace greyhound::cuda_test;
using test::Graph;
using test::Stream;

namespace {

struct Case {
  const char* name;
  DType dtype;
  std::int64_t size, gap, offset;
  float dropout;
  bool warpgroups;
};

}  // namespace

TEST_CASE("attention on CUDA: captured in a graph, by the kernels for its tensors" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const std::int64_t batch = 2, tokens = 200, heads = 3;
  for (const Case& c :
       {Case{"heads of 64", DType::bf16, 64, 0, 0, 0, true}, Case{"heads of 128", DType::bf16, 128, 0, 0, 0, true},
        Case{"heads of 40, rows apart", DType::bf16, 40, 8, 8, 0, true}, Case{"fp32", DType::fp32, 64, 0, 0, 0, false},
        Case{"dropout", DType::bf16, 64, 0, 0, 0.25f, false}, Case{"heads of 36", DType::bf16, 36, 0, 0, 0, false},
        Case{"rows of no alignment", DType::bf16, 64, 4, 0, 0, false},
        Case{"a first row of no alignment", DType::bf16, 64, 0, 4, 0, false}}) {
    INFO(std::string(c.name));
    const Stream stream;
    const Context context = device_context(static_cast<cudaStream_t>(stream));
    const std::int64_t rows = batch * tokens, channels = heads * c.size;
    const auto random = [&](std::int64_t columns, std::uint64_t seed) {
      return HostTensor::random(c.dtype, {rows, columns}, seed, -2, 2, columns + c.gap, c.offset);
    };
    const Placed qkv(context, random(3 * channels, 1)), grad_out(context, random(channels, 2));
    const HostTensor no_out(c.dtype, {rows, channels}, channels + c.gap, c.offset);
    const HostTensor no_grad(c.dtype, {rows, 3 * channels}, 3 * channels + c.gap, c.offset);
    const Placed out(context, no_out), grad_qkv(context, no_grad),
        lse(context, HostTensor(DType::fp32, {batch, heads, tokens}));
    GuardedWorkspace memory(context, attention_workspace_bytes(context, c.dtype, batch, tokens, channels, heads));
    const Dropout dropout{c.dropout, 5, 0};
    const auto forward = [&] { attention_forward(context, {qkv, out, lse, batch, heads, dropout}, memory.workspace); };
    const auto backward = [&] {
      attention_backward(context, {grad_out, qkv, out, lse, grad_qkv, batch, heads, dropout}, memory.workspace);
    };
    forward();
    backward();
    context.synchronize();
    const HostTensor first_out = out.back(), first_grad = grad_qkv.back();

    Graph forward_graph(stream, [&] { forward(); });
    Graph backward_graph(stream, [&] { backward(); });
    CHECK(forward_graph.only_device_work());
    CHECK(backward_graph.only_device_work());
    if (test::has_hopper_kernels()) {
      CHECK(test::count_names(forward_graph.kernel_names(), "hopper") == (c.warpgroups ? 1 : 0));
      CHECK(test::count_names(backward_graph.kernel_names(), "hopper") == (c.warpgroups ? 2 : 0));
    }
    // Others of the same shape between them: a graph holds addresses, not data.
    const HostTensor others = random(3 * channels, 3), same = random(3 * channels, 1);
    for (const HostTensor* data : {&others, &same}) {
      qkv.upload(*data);
      out.upload(no_out);
      grad_qkv.upload(no_grad);
      forward_graph.launch();
      backward_graph.launch();
      context.synchronize();
      const bool expected = data == &same;
      CHECK((out.back().bytes() == first_out.bytes()) == expected);
      CHECK((grad_qkv.back().bytes() == first_grad.bytes()) == expected);
    }
    CHECK(memory.intact());
  }
}
