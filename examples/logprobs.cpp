// Scoring: the log-probability of each token of a sequence under a head, and of four candidates for the last one,
// without logits for the whole sequence.
#include <greyhound/loss/loss.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace loss = greyhound::loss;
using greyhound::DType;
using greyhound::tensor;

int main() {
  const std::int64_t tokens = 12, hidden = 24, vocab = 500, candidates = 4;
  std::vector<float> hidden_states(tokens * hidden), weight(vocab * hidden), logprob(tokens);
  std::vector<std::int32_t> next(tokens);
  for (std::size_t i = 0; i < hidden_states.size(); ++i) hidden_states[i] = std::sin(0.9f * static_cast<float>(i));
  for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = 0.2f * std::cos(0.4f * static_cast<float>(i));
  for (std::size_t i = 0; i < next.size(); ++i) next[i] = static_cast<std::int32_t>(41 * i % vocab);

  const greyhound::Context context = greyhound::Context::cpu();
  loss::PlanOptions options;
  options.grad_input = options.grad_weight = false;
  const loss::Plan plan = loss::plan_chunked_linear_loss(context, {tokens, hidden, vocab, DType::fp32}, options);
  void* scratch = std::aligned_alloc(plan.workspace_alignment, plan.workspace_bytes);
  greyhound::Workspace workspace(scratch, plan.workspace_bytes, context.device());

  loss::chunked_linear_selective_log_softmax(context, plan,
                                             {tensor(hidden_states.data(), DType::fp32, {tokens, hidden}),
                                              tensor(weight.data(), DType::fp32, {vocab, hidden}),
                                              tensor(next.data(), DType::int32, {tokens}),
                                              {}},
                                             tensor(logprob.data(), DType::fp32, {tokens}), {}, workspace);
  double sum = 0;
  for (const float value : logprob) sum += value;
  std::printf("log-probability of the sequence %.4f, perplexity %.1f\n", sum, std::exp(-sum / tokens));

  // Several classes of one row: an index of shape [1, 4].
  const std::int32_t choices[candidates] = {3, 57, 212, 499};
  float scores[candidates];
  loss::chunked_linear_selective_log_softmax(context, plan,
                                             {tensor(&hidden_states[(tokens - 1) * hidden], DType::fp32, {1, hidden}),
                                              tensor(weight.data(), DType::fp32, {vocab, hidden}),
                                              tensor(choices, DType::int32, {1, candidates}),
                                              {}},
                                             tensor(scores, DType::fp32, {1, candidates}), {}, workspace);
  for (std::int64_t k = 0; k < candidates; ++k) std::printf("token %3d: %.4f\n", choices[k], scores[k]);
  std::free(scratch);
}
