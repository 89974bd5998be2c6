// The GPT-2 family: A. Radford et al., "Language models are unsupervised multitask learners", 2019.
#pragma once

#include <greyhound/core/arena.h>
#include <greyhound/core/gradient_hook.h>
#include <greyhound/kernels/elementwise.h>
#include <greyhound/loss/loss.h>
#include <greyhound/models/parameters.h>
#include <greyhound/models/recompute.h>

#include <cstdint>
#include <memory>

namespace greyhound {

struct GptConfig {
  std::int64_t n_layer = 12;
  std::int64_t n_head = 12;
  std::int64_t n_embd = 768;
  std::int64_t block_size = 1024;     // T_max
  std::int64_t vocab_size = 50257;    // V
  std::int64_t vocab_multiple = 128;  // rows of the embedding are padded to a multiple of this
  bool bias = true;                   // in linear layers and layer norms
  bool tie_embeddings = true;         // the head's weight is the token embedding
  float dropout = 0;

  std::int64_t padded_vocab() const { return (vocab_size + vocab_multiple - 1) / vocab_multiple * vocab_multiple; }
  void validate() const;  // throws a usage Error with the numbers that do not fit
};

struct LossSettings {
  float z_loss_multiplier = 0;
  float label_smoothing = 0;
  float softcap = 0;
  std::int64_t ignore_index = -100;
  std::size_t max_workspace_bytes = 0;  // 0: the default plan
  loss::AccumDType grad_weight_accum_dtype = loss::AccumDType::fp32;
};

// A micro-batch on the device. Row b of the micro-batch is row first_row + b of the whole step over all micro-batches
// and ranks: dropout is a function of it.
struct Batch {
  ConstTensor tokens;   // [B, T] int32, each in [0, V)
  ConstTensor targets;  // [B, T] int32, in [0, V) or ignore_index
  std::uint64_t first_row = 0;
  // Where the masks of dropout are drawn from, as dropout_origin() makes it, on the device; optional. With it neither
  // first_row nor seed and step of StepInfo are looked at, so that a graph of forward_backward serves every step.
  const DropoutOrigin* dropout = nullptr;
};

// What a training step tells each of its micro-batches.
struct StepInfo {
  std::uint64_t seed = 0;  // of dropout
  std::uint64_t step = 0;
  ConstTensor denominator;         // [1] fp32 on the device: valid targets of the whole step over all ranks
  bool first_micro_batch = true;   // gradients are overwritten; afterwards they are added to
  GradientHook gradient_complete;  // optional; called on every micro-batch, ranges in the block's order
};

// Of a micro-batch with `tokens` columns.
inline DropoutOrigin dropout_origin(std::uint64_t seed, std::uint64_t step, std::uint64_t first_row,
                                    std::int64_t tokens) {
  return {mix_key(seed, step), first_row * static_cast<std::uint64_t>(tokens)};
}

class Gpt {
 public:
  // Throws a usage Error when the configuration is inconsistent. precision: fp32 or bf16 (activations and the weights
  // that products read).
  Gpt(const GptConfig& config, DType precision, const LossSettings& loss, Recompute recompute = Recompute::none);
  ~Gpt();
  Gpt(Gpt&&) noexcept;

  const GptConfig& config() const;
  DType precision() const;
  const ParameterList& parameters() const;

  // Floating-point operations of one trained token, forward and backward (6 x parameters in products + attention).
  double flops_per_token(std::int64_t tokens) const;

  enum class Mode { training, evaluation };
  // Adds activations, scratch and the loss workspace for micro-batches of up to [batch, tokens] to the plan, in the
  // regions "activations" and "loss workspace". Evaluation alone (no backward) takes less. Once per model;
  // a model planned for training evaluates in the same buffers.
  void plan(const Context& context, ArenaPlan& plan, std::int64_t batch, std::int64_t tokens, Mode mode);
  // Adds key-value cache and buffers for generating up to block_size positions of one sequence, region "generation".
  void plan_generation(const Context& context, ArenaPlan& plan);

  // After the arena was made: where the buffers are. weights [block_elements] in `precision`; gradients
  // [block_elements] fp32, empty for evaluation.
  void bind(const Arena& arena, const Tensor& weights, const Tensor& gradients);

  // Loss and gradients of one micro-batch; adds to `sums`. A token or a target out of range is recorded in the error
  // word of `sums`, with its row b * T + t: reading them throws. Throws a usage Error when the batch is not what was
  // planned.
  void forward_backward(const Context& context, const Batch& batch, const StepInfo& step, loss::LossSums& sums);
  // Loss alone, without dropout; adds to `sums`. Touches nothing that training uses between steps.
  void evaluate(const Context& context, const Batch& batch, loss::LossSums& sums);

  // The logits [V] fp32 on the device, softcap applied, that follow `token` (int32 on the host) at `position` <
  // block_size; positions are fed in order from 0. Valid until the next call. Enqueues, and waits for nothing.
  ConstTensor decode(const Context& context, std::int32_t token, std::int64_t position);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace greyhound
