// A loss of your own on a GPU: the focal loss -(1 - p_y)^2 log p_y (T.-Y. Lin et al., 2017) as a functor of
// loss/row_loss.cuh, in the callback of chunked_linear_loss. custom_loss.cpp is the same on the CPU.
#include <greyhound/loss/loss.h>
#include <greyhound/loss/row_loss.cuh>

#include <cmath>
#include <cstdio>

namespace loss = greyhound::loss;
using greyhound::DType;
using greyhound::tensor;

// The base gathers softmax with the target class apart, so neither log p_y nor 1 - p_y is lost to rounding.
struct FocalLoss : loss::TargetSoftmaxLoss<std::int32_t> {
  using TargetSoftmaxLoss::TargetSoftmaxLoss;
  __device__ float loss(const Statistics& s, std::int64_t) const {
    return -s.one_minus_p() * s.one_minus_p() * s.log_p();
  }
  __device__ float gradient(const Statistics& s, float logit, std::int64_t row, int column) const {
    const float q = s.one_minus_p(), d_log_p = -q * q + 2 * q * s.p() * s.log_p();  // d loss / d log p_y
    return d_log_p * s.log_p_gradient(logit, column == target(row));
  }
};

template <class T>
T* managed(std::size_t count) {
  void* memory = nullptr;
  greyhound::cuda::check(cudaMallocManaged(&memory, count * sizeof(T)), "cudaMallocManaged");
  return static_cast<T*>(memory);
}

int main() try {
  if (greyhound::cuda_device_count() == 0) {
    std::printf("skipped: no CUDA device: %s\n", greyhound::cuda_unavailable_reason().c_str());
    return 0;
  }
  const std::int64_t tokens = 48, hidden = 16, vocab = 300;
  float *inputs = managed<float>(tokens * hidden), *weight = managed<float>(vocab * hidden),
        *grad_weight = managed<float>(vocab * hidden);
  std::int32_t* targets = managed<std::int32_t>(tokens);
  for (std::int64_t i = 0; i < tokens * hidden; ++i) inputs[i] = std::sin(0.7f * static_cast<float>(i));
  for (std::int64_t i = 0; i < vocab * hidden; ++i) weight[i] = 0.3f * std::cos(0.3f * static_cast<float>(i));
  for (std::int64_t i = 0; i < tokens; ++i) targets[i] = static_cast<std::int32_t>(37 * i % vocab);

  const greyhound::Context context = greyhound::Context::cuda(0);
  const greyhound::Device gpu = context.device();
  loss::PlanOptions options;
  options.chunk_rows = 16;
  options.grad_input = false;  // frozen inputs
  const loss::Plan plan = loss::plan_chunked_linear_loss(context, {tokens, hidden, vocab, DType::fp32}, options);
  greyhound::Workspace workspace(managed<char>(plan.workspace_bytes), plan.workspace_bytes, gpu);
  loss::LossSums sums(context, managed<char>(loss::LossSums::bytes));
  loss::ProjectionInputs in;
  in.inputs = tensor(inputs, DType::fp32, {tokens, hidden}, 0, gpu);
  in.weight = tensor(weight, DType::fp32, {vocab, hidden}, 0, gpu);
  loss::LinearGradients gradients;
  gradients.weight = loss::overwrite(tensor(grad_weight, DType::fp32, {vocab, hidden}, 0, gpu));
  const loss::RowLoss focal = [&](const greyhound::Context& on, const loss::LogitsTile& tile) {
    loss::row_loss(on, tile, FocalLoss(targets));
  };

  // One step of gradient descent on the head must lower the loss.
  double losses[2];
  for (double& value : losses) {
    sums.reset(context);
    loss::chunked_linear_loss(context, plan, in, focal, gradients, workspace, sums);
    value = sums.read(context).mean_loss();  // waits for the stream, so the host may read grad_weight
    for (std::int64_t i = 0; i < vocab * hidden; ++i) weight[i] -= 0.01f * grad_weight[i];
  }
  std::printf("focal loss %.6f, after one step %.6f\n", losses[0], losses[1]);
  return losses[1] < losses[0] ? 0 : 1;
} catch (const greyhound::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return error.exit_code();
}
