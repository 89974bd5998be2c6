// Backward: each function is the mirror of its namesake in gpt_forward.cpp. The gradient of the residual stream lives
// in one buffer, grad_residual, to which every block adds; `branch` and `grad_wide` hold gradients within a block.
#include <greyhound/kernels/attention.h>
#include <greyhound/kernels/embedding.h>
#include <greyhound/models/gpt_impl.h>

namespace greyhound {
namespace {

// The gradient that enters a branch whose output was dropped out: grad_residual itself when nothing was dropped.
ConstTensor dropout_backward(const Pass& pass, const Tensor& grad_residual, const Tensor& branch,
                             const Dropout& dropout) {
  if (dropout.probability == 0) return grad_residual;
  dropout_apply(pass.context, {grad_residual, branch, dropout});
  return branch;
}

}  // namespace

void Gpt::Impl::backward(const Pass& pass, const ConstTensor& tokens, const GradientHook& gradient_complete) {
  std::size_t completed = 0;
  const auto range_complete = [&] {
    const GradientRange range = ranges[completed++];
    if (gradient_complete) gradient_complete(range);
  };
  if (!config.tie_embeddings) range_complete();  // the head made its weight's gradient
  final_norm_backward(pass);
  range_complete();
  for (std::int64_t layer = config.n_layer - 1; layer >= 0; --layer) {
    mlp_block_backward(pass, layer);
    attention_block_backward(pass, layer, block_input(pass, layer));
    range_complete();
  }
  embed_backward(pass, tokens);
  range_complete();
}

void Gpt::Impl::final_norm_backward(const Pass& pass) {
  const SharedActivations<Tensor> buffers = activations(pass);
  norm_backward(pass.context, ln_f, buffers.branch, block_input(pass, config.n_layer), {buffers.mean_f, buffers.rstd_f},
                buffers.grad_residual, false, pass.accumulate, workspace);
}

void Gpt::Impl::mlp_block_backward(const Pass& pass, std::int64_t layer) {
  const GptBlock& block = blocks[layer];
  const BlockActivations<Tensor> kept = activations(pass, layer);
  const SharedActivations<Tensor> buffers = activations(pass);
  const Tensor grad_hidden = buffers.grad_wide;

  const ConstTensor grad_out =
      dropout_backward(pass, buffers.grad_residual, buffers.branch, pass.at(layer, Pass::mlp_out));
  linear_backward(pass.context, block.mlp_out, grad_out, kept.gelu, grad_hidden, pass.accumulate, workspace);
  gelu_backward(pass.context, {grad_hidden, kept.hidden, grad_hidden});
  const Tensor grad_normed = buffers.branch;
  linear_backward(pass.context, block.mlp_in, grad_hidden, kept.normed_2, grad_normed, pass.accumulate, workspace);
  norm_backward(pass.context, block.ln_2, grad_normed, kept.residual_mid, {kept.mean_2, kept.rstd_2},
                buffers.grad_residual, true, pass.accumulate, workspace);
}

void Gpt::Impl::attention_block_backward(const Pass& pass, std::int64_t layer, const ConstTensor& residual) {
  const GptBlock& block = blocks[layer];
  const BlockActivations<Tensor> kept = activations(pass, layer);
  const SharedActivations<Tensor> buffers = activations(pass);
  // Both fit into the 4 C columns that the MLP's gradient no longer needs.
  const std::int64_t rows = pass.rows(), channels = config.n_embd;
  const Tensor grad_qkv = buffers.grad_wide.slice(0, {rows, 3 * channels});
  const Tensor grad_attention = buffers.grad_wide.slice(rows * 3 * channels, {rows, channels});

  const ConstTensor grad_out =
      dropout_backward(pass, buffers.grad_residual, buffers.branch, pass.at(layer, Pass::attention_out));
  linear_backward(pass.context, block.attention_out, grad_out, kept.attention, grad_attention, pass.accumulate,
                  workspace);
  attention_backward(pass.context,
                     {grad_attention, kept.qkv, kept.attention, kept.lse, grad_qkv, pass.batch, config.n_head,
                      pass.at(layer, Pass::attention_weights)},
                     workspace);
  const Tensor grad_normed = buffers.branch;
  linear_backward(pass.context, block.attention_in, grad_qkv, kept.normed_1, grad_normed, pass.accumulate, workspace);
  norm_backward(pass.context, block.ln_1, grad_normed, residual, {kept.mean_1, kept.rstd_1}, buffers.grad_residual,
                true, pass.accumulate, workspace);
}

void Gpt::Impl::embed_backward(const Pass& pass, const ConstTensor& tokens) {
  const Tensor grad_embedded = activations(pass).grad_residual;
  if (pass.dropout > 0) dropout_apply(pass.context, {grad_embedded, grad_embedded, pass.at_embedding()});
  EmbeddingBackward args;
  args.grad_out = grad_embedded;
  args.tokens = tokens;
  args.grad_token = token_embedding.grad;
  args.grad_position = position_embedding.grad;
  args.vocab = config.vocab_size;
  args.accumulate_token = pass.accumulate || config.tie_embeddings;  // a tied head was here before
  args.accumulate_position = pass.accumulate;
  embedding_backward(pass.context, args, workspace);
}

}  // namespace greyhound
