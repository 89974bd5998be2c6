// Raw pointers in, loss and gradients out: the chunked linear cross-entropy of a toy head on the CPU.
//   c++ -std=c++17 minimal_cpu.cpp $(pkg-config --cflags --libs greyhound)
#include <greyhound/loss/loss.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace loss = greyhound::loss;
using greyhound::DType;
using greyhound::tensor;

int main() {
  const std::int64_t tokens = 64, hidden = 32, vocab = 1000;
  std::vector<float> inputs(tokens * hidden), weight(vocab * hidden), grad_inputs(inputs), grad_weight(weight);
  std::vector<std::int32_t> targets(tokens);
  for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = std::sin(0.7f * static_cast<float>(i));
  for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = 0.1f * std::cos(0.3f * static_cast<float>(i));
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<std::int32_t>(37 * i % vocab);
  targets[5] = -100;  // ignored

  // The plan says how much scratch memory a call takes; the memory is yours.
  const greyhound::Context context = greyhound::Context::cpu();
  const loss::Plan plan = loss::plan_chunked_linear_loss(context, {tokens, hidden, vocab, DType::fp32});
  void* scratch = std::aligned_alloc(plan.workspace_alignment, plan.workspace_bytes);
  greyhound::Workspace workspace(scratch, plan.workspace_bytes, context.device());
  alignas(loss::LossSums::alignment) unsigned char storage[loss::LossSums::bytes];
  loss::LossSums sums(context, storage);
  sums.reset(context);

  loss::LinearInputs in;
  in.inputs = tensor(inputs.data(), DType::fp32, {tokens, hidden});
  in.weight = tensor(weight.data(), DType::fp32, {vocab, hidden});
  in.targets = tensor(targets.data(), DType::int32, {tokens});
  loss::LinearGradients gradients;
  gradients.input = loss::overwrite(tensor(grad_inputs.data(), DType::fp32, {tokens, hidden}));
  gradients.weight = loss::overwrite(tensor(grad_weight.data(), DType::fp32, {vocab, hidden}));
  try {
    loss::chunked_linear_cross_entropy(context, plan, in, {}, gradients, workspace, sums);
    const loss::Report report = sums.read(context);  // throws when a target was out of range
    std::printf("loss %.6f over %lld tokens, %zu bytes of workspace\n", report.mean_loss(),
                static_cast<long long>(report.n_valid), plan.workspace_bytes);
  } catch (const greyhound::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
  std::free(scratch);
}
