// Loss and gradients of a head in GPU memory: cudaMalloc pointers in, your own stream, no CUDA compiler.
//   c++ -std=c++17 minimal_cuda.cpp $(pkg-config --cflags --libs greyhound)
#include <cuda_runtime_api.h>
#include <greyhound/loss/loss.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace loss = greyhound::loss;
using greyhound::bf16;
using greyhound::Device;
using greyhound::DType;
using greyhound::tensor;

void check(cudaError_t status) {
  if (status != cudaSuccess) greyhound::throw_runtime(cudaGetErrorString(status));
}

template <class T>
T* on_device(std::size_t count, T (*value)(std::size_t)) {
  std::vector<T> host(count);
  for (std::size_t i = 0; i < count; ++i) host[i] = value(i);
  void* memory = nullptr;
  check(cudaMalloc(&memory, count * sizeof(T)));
  check(cudaMemcpy(memory, host.data(), count * sizeof(T), cudaMemcpyHostToDevice));
  return static_cast<T*>(memory);
}

bf16 small(std::size_t i) { return greyhound::from_float<bf16>(0.3f * std::sin(0.7f * static_cast<float>(i))); }

int main() try {
  if (greyhound::cuda_device_count() == 0) {
    std::printf("skipped: no CUDA device: %s\n", greyhound::cuda_unavailable_reason().c_str());
    return 0;
  }
  const std::int64_t tokens = 512, hidden = 256, vocab = 5000;
  cudaStream_t stream;
  check(cudaStreamCreate(&stream));
  const greyhound::Context context = greyhound::Context::cuda(0, stream);  // keep it: it holds handles and choices
  const Device gpu = context.device();

  loss::LinearInputs in;
  in.inputs = tensor(on_device<bf16>(tokens * hidden, small), DType::bf16, {tokens, hidden}, 0, gpu);
  in.weight = tensor(on_device<bf16>(vocab * hidden, small), DType::bf16, {vocab, hidden}, 0, gpu);
  in.targets = tensor(on_device<int>(tokens, [](std::size_t i) { return static_cast<int>(37 * i % 5000); }),
                      DType::int32, {tokens}, 0, gpu);
  loss::LinearGradients gradients;
  gradients.input =
      loss::overwrite(tensor(on_device<bf16>(tokens * hidden, small), DType::bf16, {tokens, hidden}, 0, gpu));
  gradients.weight = loss::overwrite(
      tensor(on_device<float>(vocab * hidden, [](std::size_t) { return 0.0f; }), DType::fp32, {vocab, hidden}, 0, gpu));

  // The plan says how much scratch memory a call takes; the memory is yours.
  const loss::Plan plan = loss::plan_chunked_linear_loss(context, {tokens, hidden, vocab, DType::bf16});
  void *scratch = nullptr, *storage = nullptr;
  check(cudaMalloc(&scratch, plan.workspace_bytes));
  check(cudaMalloc(&storage, loss::LossSums::bytes));
  greyhound::Workspace workspace(scratch, plan.workspace_bytes, gpu);
  loss::LossSums sums(context, storage);

  sums.reset(context);
  loss::chunked_linear_cross_entropy(context, plan, in, {}, gradients, workspace, sums);  // enqueues, returns at once
  const loss::Report report = sums.read(context);  // waits; throws when a target was out of range
  std::printf("loss %.6f over %lld tokens, %zu bytes of workspace\n", report.mean_loss(),
              static_cast<long long>(report.n_valid), plan.workspace_bytes);
  return 0;
} catch (const greyhound::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return error.exit_code();
}
