// The same bits whatever the number of threads and however often a call runs; and no allocation while it does.
#include <greyhound/kernels/matmul.h>
#include <tests/loss/linear_problem.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<long> allocations{0};
}

// Counts what C++ code of this program allocates, and what greyhound::allocate does (the linker's --wrap). Memory that
// a shared library takes is not seen.
extern "C" int __real_posix_memalign(void** pointer, std::size_t alignment, std::size_t bytes);
extern "C" int __wrap_posix_memalign(void** pointer, std::size_t alignment, std::size_t bytes) {
  ++allocations;
  return __real_posix_memalign(pointer, alignment, bytes);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto granule = static_cast<std::size_t>(alignment);
  ++allocations;
  void* pointer = std::aligned_alloc(granule, (bytes / granule + 1) * granule);
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}
void operator delete(void* pointer, std::align_val_t) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::size_t, std::align_val_t) noexcept { std::free(pointer); }
void* operator new(std::size_t bytes) {
  ++allocations;
  void* pointer = std::malloc(bytes == 0 ? 1 : bytes);
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void operator delete(void* pointer) noexcept { std::free(pointer); }
void operator delete[](void* pointer) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { std::free(pointer); }
void operator delete[](void* pointer, std::size_t) noexcept { std::free(pointer); }

using namespace greyhound;
using namespace greyhound::test;

namespace {

LinearResult run_with(const LinearProblem& p, int threads) {
  loss::CrossEntropyOptions options;
  options.z_loss_multiplier = 1e-4f;
  loss::PlanOptions plan;
  plan.chunk_rows = 48;
  plan.grad_weight_dtype = p.dtype;
  return run_linear(p, LinearData(p), options, plan, {true, true, true}, threads);
}

void check_same(const LinearResult& a, const LinearResult& b) {
  CHECK(a.grad_input.same_bits(b.grad_input));
  CHECK(a.grad_weight.same_bits(b.grad_weight));
  CHECK(a.grad_bias.same_bits(b.grad_bias));
  CHECK(a.row_loss.same_bits(b.row_loss));
  CHECK(std::memcmp(&a.sums, &b.sums, sizeof a.sums) == 0);
}

}  // namespace

TEST_CASE_ON_EACH_BACKEND("chunked_linear_cross_entropy: same bits with 1, 2 and 4 threads, run after run") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const LinearProblem p{130, 40, 1100, dtype, 1104, true};
    const LinearResult first = run_with(p, 1);
    for (const int threads : {2, 3, 4}) check_same(run_with(p, threads), first);
    const LinearProblem small{20, 24, 300, dtype};
    const LinearResult again = run_with(small, 1);
    for (int run = 0; run < 50; ++run) check_same(run_with(small, 2), again);
  }
}

TEST_CASE_ON_EACH_BACKEND("cross_entropy: same bits with 1, 2 and 4 threads, run after run") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    Normal normal(9);
    const Buffer logits = Buffer(dtype, Shape{40, 3001}).fill([&](auto, auto) { return 3 * normal(); });
    Buffer first;
    LossSumsData first_sums;
    for (int run = 0; run < 50; ++run) {
      const Context context = test_context(1 << run % 3);
      Buffer grad = logits, target(DType::int64, Shape{40});
      for (int i = 0; i < 40; ++i) target.set_index(0, i, i % 7 ? 70 * i : -100);
      Sums sums(context);
      Scratch scratch(loss::cross_entropy_workspace_bytes(context, 40));
      loss::cross_entropy_with_grad(context, grad, target, scratch.workspace, sums.sums);
      if (run == 0) {
        first = grad;
        first_sums = sums.data();
      }
      CHECK(grad.same_bits(first));
      const LossSumsData data = sums.data();
      CHECK(std::memcmp(&data, &first_sums, sizeof first_sums) == 0);
    }
  }
}

TEST_CASE("losses: no allocation during a call") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const LinearProblem p{50, 24, 300, dtype, 304, true};
    const Context context = test_context(2);
    LinearData data(p);
    loss::PlanOptions options;
    options.chunk_rows = 16;
    options.grad_weight_dtype = dtype;
    const loss::Plan plan = loss::plan_chunked_linear_loss(context, p.shape(), options);
    Scratch scratch(plan.workspace_bytes), row_scratch(loss::cross_entropy_workspace_bytes(context, p.rows));
    Sums sums(context);
    Buffer grad_input(dtype, Shape{50, 24}), grad_weight(dtype, Shape{304, 24}), grad_bias(DType::fp32, Shape{304});
    Buffer logits(dtype, Shape{50, 300}), logprob(DType::fp32, Shape{50}), lse(DType::fp32, Shape{50});
    Buffer grad_out = Buffer(DType::fp32, Shape{50}).fill([](auto, auto) { return 1; });
    Buffer factor = vector(DType::fp32, {0.5});
    const loss::LinearIndex index{data.inputs, data.weight, data.targets, data.bias};
    const loss::RowLoss row_loss = [](const Context& in, const loss::LogitsTile& tile) {
      fill_bytes(in, tile.row_loss.data, 0, tile.row_loss.bytes());
    };
    const loss::LinearInputs in{data.inputs, data.weight, data.targets, data.bias};
    const loss::LinearGradients gradients{loss::overwrite(grad_input), loss::overwrite(grad_weight),
                                          loss::overwrite(grad_bias)};
    const auto calls = [&] {
      loss::chunked_linear_cross_entropy(context, plan, in, {}, gradients, scratch.workspace, sums.sums);
      loss::cross_entropy_with_grad(context, logits, data.targets, row_scratch.workspace, sums.sums);
      loss::selective_log_softmax(context, logits, data.targets, logprob, {}, lse);
      loss::selective_log_softmax_backward(context, grad_out, data.targets, logits, lse, logits);
      loss::chunked_linear_loss(context, plan, {data.inputs, data.weight, data.bias}, row_loss, gradients,
                                scratch.workspace, sums.sums);
      loss::chunked_linear_selective_log_softmax(context, plan, index, logprob, {}, scratch.workspace, lse);
      loss::chunked_linear_selective_log_softmax_backward(context, plan, index, grad_out, lse, {}, gradients,
                                                          scratch.workspace);
      loss::scale_gradients(context, factor, {grad_input, grad_weight, grad_bias});
    };
    calls();  // the first one fills the context's caches
    const long before = allocations;
    calls();
    const long after = allocations;
    // Where the processor multiplies bf16, oneDNN makes a few small host objects of its own to run a primitive.
    const std::string library = matmul_library(context);
    const bool primitives = library.find("_bf16") != std::string::npos || library.find("_amx") != std::string::npos;
    if (dtype != DType::bf16 || !primitives) CHECK(after == before);
  }
}
