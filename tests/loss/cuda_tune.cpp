// Tuned chunked losses on CUDA; and calls that are captured in a graph before they ever ran.
#include <cuda_runtime_api.h>
#include <greyhound/core/cuda/cuda_check.h>
#include <greyhound/kernels/matmul_choices.h>
#include <greyhound/loss/loss.h>
#include <tests/cuda_support.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>

using namespace greyhound;
using namespace greyhound::cuda_test;

namespace {

struct Case {
  DType dtype = DType::bf16;
  std::int64_t rows = 100, hidden = 64, vocab = 1000;
  bool bias = false;
  std::int64_t choices = 0;  // that tune makes: products of a full chunk and of the last one
  std::int64_t padded = 0;   // rows of the weight, behind the vocabulary NaN; 0: none

  std::int64_t stored() const { return padded > 0 ? padded : vocab; }
};

// One call's memory.
struct Call {
  Call(const Context& context, const Case& c)
      : inputs(context, HostTensor::random(c.dtype, {c.rows, c.hidden}, 61, -1, 1)),
        weight(context, weight_of(c)),
        bias(context, c.bias ? HostTensor::random(DType::fp32, {c.stored()}, 63, -0.5, 0.5) : HostTensor()),
        index(context, targets(c)),
        grad_input(context, HostTensor(c.dtype, {c.rows, c.hidden})),
        grad_weight(context, HostTensor(DType::fp32, {c.stored(), c.hidden})),
        storage(context, loss::LossSums::bytes, 0),
        sums(context, storage.data()) {
    loss::PlanOptions options;
    options.chunk_rows = 64;
    plan = loss::plan_chunked_linear_loss(context, {c.rows, c.hidden, c.vocab, c.dtype, c.padded}, options);
    scratch = std::make_unique<GuardedWorkspace>(context, plan.workspace_bytes);
  }

  void enqueue(const Context& context) {
    sums.reset(context);
    loss::chunked_linear_cross_entropy(context, plan, {inputs, weight, index, bias}, {},
                                       {loss::overwrite(grad_input), loss::overwrite(grad_weight), {}},
                                       scratch->workspace, sums);
  }
  loss::Report run(const Context& context) {
    enqueue(context);
    const loss::Report report = sums.read(context);
    CHECK(scratch->intact());
    return report;
  }

  static HostTensor weight_of(const Case& c) {
    HostTensor weight = HostTensor::random(c.dtype, {c.stored(), c.hidden}, 62, -0.5, 0.5);
    for (std::int64_t i = c.vocab * c.hidden; i < c.stored() * c.hidden; ++i) {
      weight.set(i, std::numeric_limits<double>::quiet_NaN());
    }
    return weight;
  }
  static HostTensor targets(const Case& c) {
    HostTensor index(DType::int32, {c.rows});
    for (std::int64_t row = 0; row < c.rows; ++row) index.set_index(row, row % 7 == 1 ? -100 : row * 31 % c.vocab);
    return index;
  }

  Placed inputs, weight, bias, index, grad_input, grad_weight;
  DeviceMemory storage;
  loss::LossSums sums;
  loss::Plan plan;
  std::unique_ptr<GuardedWorkspace> scratch;
};

void check_same_bits(const Call& one, const Call& other) {
  CHECK(one.grad_input.back().bytes() == other.grad_input.back().bytes());
  CHECK(one.grad_weight.back().bytes() == other.grad_weight.back().bytes());
}

// What tuning the logits' product on the call's own buffers throws.
std::string tuning_complaint(const Context& context, const Call& call) {
  Matmul args;
  args.a = call.inputs;
  args.b = call.weight;
  args.transpose_b = true;
  args.out = call.scratch->workspace.take(call.plan.shape.dtype, {call.plan.shape.tokens, call.plan.shape.vocab});
  try {
    tune_matmul(context, args, call.scratch->workspace);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

class Stream {
 public:
  Stream() { cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"); }
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace

TEST_CASE("tuned calls have the bits of untuned ones, and so have those with loaded choices" *
          doctest::test_suite("cuda")) {
  if (!have_device()) return;
  // Three products for each chunk length; fp16 tunes the two of the gradients with and without alpha on the device.
  for (const Case& c :
       {Case{DType::bf16, 100, 64, 1000, false, 6}, Case{DType::bf16, 64, 64, 1031, true, 3},
        Case{DType::fp16, 100, 72, 1000, true, 10}, Case{DType::fp32, 100, 20, 77, false, 6},
        Case{DType::bf16, 100, 64, 1001, true, 6, 1024}, Case{DType::bf16, 64, 64, 1001, false, 3, 1008},
        Case{DType::fp32, 100, 20, 77, true, 6, 128}}) {
    INFO("dtype " << std::string(name_of(c.dtype)) << ", vocabulary " << c.vocab);
    const Context untuned = Context::cuda(), tuned = Context::cuda(), loaded = Context::cuda();
    Call first(untuned, c), second(tuned, c), third(loaded, c);
    const loss::Report want = first.run(untuned);
    loss::tune(tuned, second.plan, c.bias);
    const std::string text = save_matmul_choices(tuned);
    CHECK(std::count(text.begin(), text.end(), '\n') == c.choices);
    const loss::Report got = second.run(tuned);
    CHECK(got.n_valid == want.n_valid);
    CHECK(std::isfinite(got.ce_sum));
    CHECK(got.ce_sum == want.ce_sum);
    check_same_bits(second, first);

    CHECK(load_matmul_choices(loaded, text) == c.choices);
    CHECK(third.run(loaded).ce_sum == got.ce_sum);
    check_same_bits(third, second);
  }
}

TEST_CASE("a tuned plan's choices are the calls'" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  // Broken on purpose: calls that use the choices must notice.
  const Case c{DType::bf16, 100, 64, 1000, false, 6};
  const Context tuned = Context::cuda(), broken = Context::cuda(), fp32 = Context::cuda();
  Call call(broken, c), other(fp32, {DType::fp32, 100, 64, 1000, false, 6});
  loss::tune(tuned, call.plan);
  loss::tune(fp32, other.plan);
  const std::string text = save_matmul_choices(tuned), wrong = save_matmul_choices(fp32);
  const std::string algorithm = wrong.substr(wrong.find("algorithm="), wrong.find('\n') - wrong.find("algorithm="));
  std::size_t at = 0;
  for (std::int64_t i = 0; i < c.choices; ++i) {
    const std::size_t end = text.find('\n', at), value = text.find("algorithm=", at);
    const Context one = Context::cuda();
    CHECK(load_matmul_choices(one, text.substr(at, value - at) + algorithm) == 1);
    CHECK_THROWS_AS(call.enqueue(one), Error);
    one.synchronize();
    at = end + 1;
  }
}

TEST_CASE("a call captured in a graph before it ever ran" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (const Case& c :
       {Case{DType::bf16, 90, 48, 776}, Case{DType::fp16, 90, 56, 781}, Case{DType::fp32, 90, 28, 99}}) {
    INFO("dtype " << std::string(name_of(c.dtype)));
    const Stream stream;
    const Context context = Context::cuda(0, static_cast<cudaStream_t>(stream)), plain = Context::cuda();
    Call captured(context, c), expected(plain, c);
    context.synchronize();
    cudaGraph_t graph = nullptr;
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    captured.enqueue(context);
    CHECK(tuning_complaint(context, captured).find("CUDA graph") != std::string::npos);
    cuda::check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    cudaGraphExec_t replay = nullptr;
    cuda::check(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
    cuda::check(cudaGraphLaunch(replay, stream), "cudaGraphLaunch");
    const loss::Report got = captured.sums.read(context), want = expected.run(plain);
    CHECK(got.n_valid == want.n_valid);
    CHECK(got.ce_sum == want.ce_sum);
    check_same_bits(captured, expected);
    cuda::check(cudaGraphExecDestroy(replay), "cudaGraphExecDestroy");
    cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
}
