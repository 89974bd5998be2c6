// A loss of your own through chunked_linear_loss: the focal loss -(1 - p_y)^2 log p_y of T.-Y. Lin et al., "Focal loss
// for dense object detection", 2017. The library makes the three products chunk by chunk; the callback sees a tile of
// logits.
#include <greyhound/loss/loss.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace loss = greyhound::loss;
using greyhound::DType;
using greyhound::tensor;

int main() {
  const std::int64_t tokens = 48, hidden = 16, vocab = 300;
  std::vector<float> inputs(tokens * hidden), weight(vocab * hidden), grad_weight(weight.size());
  std::vector<std::int64_t> targets(tokens);
  for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = std::sin(0.7f * static_cast<float>(i));
  for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = 0.3f * std::cos(0.3f * static_cast<float>(i));
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<std::int64_t>(37 * i % vocab);

  const loss::RowLoss focal = [&](const greyhound::Context&, const loss::LogitsTile& tile) {
    for (std::int64_t i = 0; i < tile.logits.rows(); ++i) {
      float* z = tile.logits.row<float>(i);
      const std::int64_t y = targets[static_cast<std::size_t>(tile.first_row + i)];
      float most = z[0], sum = 0;
      for (std::int64_t j = 1; j < vocab; ++j) most = std::fmax(most, z[j]);
      for (std::int64_t j = 0; j < vocab; ++j) sum += std::exp(z[j] - most);
      const float log_p = z[y] - most - std::log(sum), p = std::exp(log_p);
      tile.row_loss.as<float>()[i] = -(1 - p) * (1 - p) * log_p;
      if (!tile.gradients) continue;
      const float d_log_p = -(1 - p) * (1 - p) + 2 * (1 - p) * p * log_p;  // d loss / d log p_y
      for (std::int64_t j = 0; j < vocab; ++j) z[j] = d_log_p * ((j == y) - std::exp(z[j] - most) / sum);
    }
  };

  const greyhound::Context context = greyhound::Context::cpu();
  loss::PlanOptions options;
  options.chunk_rows = 16;
  options.grad_input = false;  // frozen inputs: their gradient is neither computed nor planned for
  const loss::Plan plan = loss::plan_chunked_linear_loss(context, {tokens, hidden, vocab, DType::fp32}, options);
  void* scratch = std::aligned_alloc(plan.workspace_alignment, plan.workspace_bytes);
  alignas(loss::LossSums::alignment) unsigned char storage[loss::LossSums::bytes];
  loss::LossSums sums(context, storage);

  // One step of gradient descent on the head must lower the loss.
  double losses[2];
  for (double& value : losses) {
    sums.reset(context);
    greyhound::Workspace workspace(scratch, plan.workspace_bytes, context.device());
    loss::chunked_linear_loss(
        context, plan,
        {tensor(inputs.data(), DType::fp32, {tokens, hidden}), tensor(weight.data(), DType::fp32, {vocab, hidden}), {}},
        focal, {{}, loss::overwrite(tensor(grad_weight.data(), DType::fp32, {vocab, hidden})), {}}, workspace, sums);
    value = sums.read(context).mean_loss();
    for (std::size_t i = 0; i < weight.size(); ++i) weight[i] -= 0.01f * grad_weight[i];
  }
  std::printf("focal loss %.6f, after one step %.6f\n", losses[0], losses[1]);
  std::free(scratch);
  return losses[1] < losses[0] ? 0 : 1;
}
