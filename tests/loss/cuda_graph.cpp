// A whole chunked call captured in a CUDA graph, and replayed with other data in the same memory.
#include <cuda_runtime_api.h>
#include <greyhound/core/cuda/cuda_check.h>
#include <greyhound/loss/loss.h>
#include <tests/cuda_support.h>

#include <string>

#include <memory>

using namespace greyhound;
using namespace greyhound::cuda_test;

namespace {

constexpr std::int64_t rows = 50, hidden = 64, vocab = 1000;

HostTensor targets(std::int64_t step) {
  HostTensor index(DType::int32, {rows});
  for (std::int64_t row = 0; row < rows; ++row) index.set_index(row, row % 7 == step ? -100 : row * step * 31 % vocab);
  return index;
}

// One call's memory, on either device.
struct Call {
  Call(const Context& context, DType dtype)
      : inputs(context, HostTensor::random(dtype, {rows, hidden}, 51, -1, 1)),
        weight(context, HostTensor::random(dtype, {vocab, hidden}, 52, -0.5, 0.5)),
        index(context, targets(1)),
        denominator(context, HostTensor::of(DType::fp32, {100})),
        grad_input(context, HostTensor(dtype, {rows, hidden})),
        grad_weight(context, HostTensor(DType::fp32, {vocab, hidden})),
        storage(context, loss::LossSums::bytes, 0),
        sums(context, storage.data()) {
    loss::PlanOptions options;
    options.chunk_rows = 16;
    plan = loss::plan_chunked_linear_loss(context, {rows, hidden, vocab, dtype}, options);
    scratch = std::make_unique<GuardedWorkspace>(context, plan.workspace_bytes);
  }

  void enqueue(const Context& context) {
    loss::CrossEntropyOptions options;
    options.denominator = denominator;
    sums.reset(context);
    loss::chunked_linear_cross_entropy(context, plan, {inputs, weight, index, {}}, options,
                                       {loss::overwrite(grad_input), loss::overwrite(grad_weight), {}},
                                       scratch->workspace, sums);
  }

  Placed inputs, weight, index, denominator, grad_input, grad_weight;
  DeviceMemory storage;
  loss::LossSums sums;
  loss::Plan plan;
  std::unique_ptr<GuardedWorkspace> scratch;
};

class Stream {
 public:
  Stream() { cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"); }
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace

TEST_CASE("chunked call captured in a CUDA graph, replayed with other targets" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    INFO("dtype " << std::string(name_of(dtype)));
    const Stream stream;
    const Context context = Context::cuda(0, static_cast<cudaStream_t>(stream));
    Call call(context, dtype);
    call.enqueue(context);  // chooses the products' algorithms
    context.synchronize();

    // In this mode the runtime refuses what a captured call must not do: allocate, synchronise, use another stream.
    cudaGraph_t graph = nullptr;
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    call.enqueue(context);
    cuda::check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    cudaGraphExec_t replay = nullptr;
    cuda::check(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");

    Call expected(Context::cpu(), dtype);
    for (std::int64_t step : {2, 3}) {
      for (Call* each : {&call, &expected}) {
        each->index.upload(targets(step));
        each->denominator.upload(HostTensor::of(DType::fp32, {10.0 * static_cast<double>(step)}));
      }
      cuda::check(cudaGraphLaunch(replay, stream), "cudaGraphLaunch");
      expected.enqueue(Context::cpu());
      const loss::Report got = call.sums.read(context), want = expected.sums.read(Context::cpu());
      const double relative = dtype == DType::fp32 ? 5e-6 : dtype == DType::bf16 ? 1e-2 : 2e-3;
      CHECK(got.n_valid == want.n_valid);
      CHECK(std::fabs(got.ce_sum - want.ce_sum) <= relative * want.ce_sum);
      const auto compare = [&](const char* name, const Placed& one, const Placed& other) {
        double largest = 0;
        for (double value : other.back().values()) largest = std::max(largest, std::fabs(value));
        check_agree(name, one.back(), other.back(), 1e-5, relative * largest);
      };
      compare("grad_input", call.grad_input, expected.grad_input);
      compare("grad_weight", call.grad_weight, expected.grad_weight);
    }
    cuda::check(cudaGraphExecDestroy(replay), "cudaGraphExecDestroy");
    cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
}
