// The inside of Gpt, shared by gpt*.cpp. Shapes: B sequences of T tokens, N = B T rows, C = n_embd, V = vocab_size.
#pragma once

#include <greyhound/kernels/elementwise.h>
#include <greyhound/models/gpt.h>
#include <greyhound/models/layers.h>

#include <vector>

namespace greyhound {

struct GptBlock {
  LayerNorm ln_1;
  Linear attention_in, attention_out;  // c_attn [3 C, C], c_proj [C, C]
  LayerNorm ln_2;
  Linear mlp_in, mlp_out;  // c_fc [4 C, C], c_proj [C, 4 C]
};

// What the forward of one block leaves for its backward. What a mode of recomputation does not keep has one buffer for
// all blocks; see gpt_memory.cpp. Handle: ArenaPlan::Slot while planning, Tensor afterwards.
template <class Handle>
struct BlockActivations {
  Handle normed_1, mean_1, rstd_1;  // [N, C]; [N] fp32
  Handle qkv;                       // [N, 3 C]
  Handle attention, lse;            // [N, C]; [B, n_head, T] fp32
  Handle residual_mid;              // [N, C]: the residual stream after attention
  Handle normed_2, mean_2, rstd_2;
  Handle hidden;    // [N, 4 C]: before the activation, training only
  Handle gelu;      // [N, 4 C]: after it; in backward gradients as wide as this
  Handle residual;  // [N, C]: the residual stream after the block

  // function(mine, theirs) for each member of two sets of activations.
  template <class Other, class Function>
  void zip(const BlockActivations<Other>& other, Function&& function) {
    function(normed_1, other.normed_1), function(mean_1, other.mean_1), function(rstd_1, other.rstd_1);
    function(qkv, other.qkv), function(attention, other.attention), function(lse, other.lse);
    function(residual_mid, other.residual_mid);
    function(normed_2, other.normed_2), function(mean_2, other.mean_2), function(rstd_2, other.rstd_2);
    function(hidden, other.hidden), function(gelu, other.gelu), function(residual, other.residual);
  }
};

// Buffers outside the blocks.
template <class Handle>
struct SharedActivations {
  Handle embedded;                   // [N, C]: the residual stream before the first block
  Handle normed_f, mean_f, rstd_f;   // the head's input; in backward, normed_f holds gradients that were dropped out
  Handle grad_residual;              // [N, C]: gradient of the residual stream, training only
  Handle workspace, loss_workspace;  // bytes

  template <class Other, class Function>
  void zip(const SharedActivations<Other>& other, Function&& function) {
    function(embedded, other.embedded), function(normed_f, other.normed_f);
    function(mean_f, other.mean_f), function(rstd_f, other.rstd_f);
    function(grad_residual, other.grad_residual);
    function(workspace, other.workspace), function(loss_workspace, other.loss_workspace);
  }
};

// Buffers of decode: one row each, and the keys and values of all positions.
template <class Handle>
struct GenerationBuffers {
  Handle residual, normed, attention, branch;  // [1, C]
  Handle qkv;                                  // [1, 3 C]
  Handle hidden;                               // [1, 4 C]
  Handle logits;                               // [1, padded vocab] fp32
  Handle workspace;
};

// One micro-batch on its way through the model.
struct Pass {
  const Context& context;
  std::int64_t batch, tokens;
  bool training = false;
  bool accumulate = false;  // backward adds to the gradients
  float dropout = 0;
  DropoutOrigin drawn;                        // of this step; first_row: token row of the whole step
  const DropoutOrigin* drawn_from = nullptr;  // or where that is on the device

  std::int64_t rows() const { return batch * tokens; }

  // The three places of a block, and the one after the embedding: each has a stream of its own.
  enum Site { attention_weights, attention_out, mlp_out };
  Dropout at_embedding() const { return of_stream(0); }
  Dropout at(std::int64_t layer, Site site) const {
    return of_stream(static_cast<std::uint64_t>(1 + 3 * layer + site));
  }
  Dropout of_stream(std::uint64_t stream) const {
    if (drawn_from != nullptr) return {dropout, stream, 0, drawn_from};
    return {dropout, mix_key(drawn.key, stream), drawn.first_row};
  }
};

struct Gpt::Impl {
  GptConfig config;
  DType precision;
  LossSettings loss;
  Recompute recompute;
  ParameterList parameters;
  std::vector<GradientRange> ranges;  // in the order in which backward completes them

  Impl(const GptConfig& config, DType precision, const LossSettings& loss, Recompute recompute);
  // Throws a usage Error unless the micro-batch fits the model and what was planned.
  void validate(const Context& context, const Batch& batch, bool training) const;

  // gpt_memory.cpp
  using Slot = ArenaPlan::Slot;
  static constexpr Slot no_slot = static_cast<Slot>(-1);
  void plan(const Context& context, ArenaPlan& plan, std::int64_t batch, std::int64_t tokens, Mode mode);
  void plan_blocks(ArenaPlan& plan, std::int64_t rows);
  void plan_generation(const Context& context, ArenaPlan& plan);
  void bind(const Arena& arena, const Tensor& weights, const Tensor& gradients);
  void bind_generation(const Arena& arena);
  std::size_t workspace_bytes(const Context& context, std::int64_t batch, std::int64_t tokens, bool backward) const;
  std::size_t row_workspace_bytes(const Context& context, std::int64_t rows, bool backward) const;
  // The buffers of a block and of the rest, seen as the rows of this pass. Evaluation uses the first block's for all.
  BlockActivations<Tensor> activations(const Pass& pass, std::int64_t layer) const;
  SharedActivations<Tensor> activations(const Pass& pass) const;

  // gpt_forward.cpp: leaves the head's input in normed_f.
  void forward(const Pass& pass, const ConstTensor& tokens, ErrorWord* errors);
  void embed(const Pass& pass, const ConstTensor& tokens, ErrorWord* errors);
  void first_norm(const Pass& pass, std::int64_t layer);
  void attention_block(const Pass& pass, std::int64_t layer);
  void mlp_hidden(const Pass& pass, std::int64_t layer);
  void mlp_block(const Pass& pass, std::int64_t layer);
  // The loss; in training also the gradients of the head's weight and of normed_f (into grad_residual).
  void head(const Pass& pass, const ConstTensor& targets, const ConstTensor& denominator, loss::LossSums& sums);

  // gpt_backward.cpp: from the gradient of normed_f to those of all parameters.
  void backward(const Pass& pass, const ConstTensor& tokens, const GradientHook& gradient_complete);
  void final_norm_backward(const Pass& pass);
  void recompute_block(const Pass& pass, std::int64_t layer);
  void mlp_block_backward(const Pass& pass, std::int64_t layer);
  void attention_block_backward(const Pass& pass, std::int64_t layer);
  void embed_backward(const Pass& pass, const ConstTensor& tokens);

  // gpt_decode.cpp
  ConstTensor decode(const Context& context, std::int32_t token, std::int64_t position);
  void decode_block(const Context& context, std::int64_t layer, std::int64_t position);
  ConstTensor decode_logits(const Context& context);

  // The residual stream that enters a block; of layer n_layer: that enters the final norm.
  Tensor block_input(const Pass& pass, std::int64_t layer) const {
    return layer == 0 ? activations(pass).embedded : activations(pass, layer - 1).residual;
  }
  bool recomputes_gelu() const { return recompute == Recompute::gelu || recompute == Recompute::gelu_norm; }
  bool recomputes_norms() const { return recompute == Recompute::gelu_norm; }

  std::vector<BlockActivations<Slot>> block_slots;
  SharedActivations<Slot> shared_slots;
  GenerationBuffers<Slot> generation_slots;
  std::vector<Slot> key_slots, value_slots;
  std::int64_t planned_batch = 0, planned_tokens = 0;  // 0: not planned
  Mode planned_mode = Mode::evaluation;
  bool generation_planned = false;
  loss::Plan loss_plan;

  // After bind.
  Weight token_embedding, position_embedding, head_weight;
  std::vector<GptBlock> blocks;
  LayerNorm ln_f;
  std::vector<BlockActivations<Tensor>> block_buffers;
  SharedActivations<Tensor> shared;
  GenerationBuffers<Tensor> generation;
  std::vector<Tensor> keys, values;  // [1, block_size, C] of each layer
  Workspace workspace, loss_workspace, generation_workspace;
};

}  // namespace greyhound
