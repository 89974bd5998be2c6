// Backward: each function is the mirror of its namesake in gpt_forward.cpp. The gradient of the residual stream lives
// in one buffer, grad_residual, to which every block adds. Other gradients take the place of activations that nobody
// needs any more: those of normed_1 and normed_2 overwrite them, those within a block stand in `gelu`, and where
// dropout makes another gradient of grad_residual, it stands in normed_f.
#include <greyhound/kernels/attention.h>
#include <greyhound/kernels/embedding.h>
#include <greyhound/models/gpt_impl.h>

namespace greyhound {
namespace {

// The gradient that enters a branch whose output was dropped out: grad_residual itself when nothing was dropped.
ConstTensor dropout_backward(const Pass& pass, const SharedActivations<Tensor>& buffers, const Dropout& dropout) {
  if (dropout.probability == 0) return buffers.grad_residual;
  dropout_apply(pass.context, {buffers.grad_residual, buffers.normed_f, dropout});
  return buffers.normed_f;
}

// The bias gradient of a layer that adds to the residual stream: the norm's backward that completes grad_residual for
// it makes it on its way, unless dropout comes between.
Tensor summed_by_norm(const Pass& pass, const Linear& linear) {
  return pass.dropout == 0 ? linear.bias.grad : Tensor();
}
void bias_backward_behind_dropout(const Pass& pass, const Linear& linear, const ConstTensor& grad_out,
                                  Workspace& workspace) {
  if (pass.dropout > 0) bias_backward(pass.context, linear, grad_out, pass.accumulate, workspace);
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
    // The last block's forward is the last that used the buffers they share.
    if (recompute == Recompute::block && layer + 1 < config.n_layer) recompute_block(pass, layer);
    mlp_block_backward(pass, layer);
    attention_block_backward(pass, layer);
    range_complete();
  }
  embed_backward(pass, tokens);
  range_complete();
}

void Gpt::Impl::final_norm_backward(const Pass& pass) {
  const SharedActivations<Tensor> buffers = activations(pass);
  norm_backward(pass.context, ln_f, buffers.grad_residual, block_input(pass, config.n_layer),
                {buffers.mean_f, buffers.rstd_f}, buffers.grad_residual, false, pass.accumulate, workspace,
                summed_by_norm(pass, blocks.back().mlp_out));
}

// All of a block's forward but its output, which is the next block's input and was kept.
void Gpt::Impl::recompute_block(const Pass& pass, std::int64_t layer) {
  first_norm(pass, layer);
  attention_block(pass, layer);
  mlp_hidden(pass, layer);
}

void Gpt::Impl::mlp_block_backward(const Pass& pass, std::int64_t layer) {
  const GptBlock& block = blocks[layer];
  const BlockActivations<Tensor> kept = activations(pass, layer);
  const SharedActivations<Tensor> buffers = activations(pass);

  if (recomputes_gelu()) gelu_forward(pass.context, {kept.hidden, kept.gelu});
  const ConstTensor grad_out = dropout_backward(pass, buffers, pass.at(layer, Pass::mlp_out));
  const Tensor grad_hidden = kept.gelu;
  bias_backward_behind_dropout(pass, block.mlp_out, grad_out, workspace);
  linear_gelu_backward(pass.context, block.mlp_out, grad_out, kept.gelu, kept.hidden, grad_hidden,
                       block.mlp_in.bias.grad, pass.accumulate, workspace);

  if (recomputes_norms()) norm_forward(pass.context, block.ln_2, kept.residual_mid, kept.normed_2, {});
  const Tensor grad_normed = kept.normed_2;
  linear_backward(pass.context, block.mlp_in, grad_hidden, kept.normed_2, grad_normed, pass.accumulate, workspace);
  norm_backward(pass.context, block.ln_2, grad_normed, kept.residual_mid, {kept.mean_2, kept.rstd_2},
                buffers.grad_residual, true, pass.accumulate, workspace, summed_by_norm(pass, block.attention_out));
}

void Gpt::Impl::attention_block_backward(const Pass& pass, std::int64_t layer) {
  const GptBlock& block = blocks[layer];
  const BlockActivations<Tensor> kept = activations(pass, layer);
  const SharedActivations<Tensor> buffers = activations(pass);
  const ConstTensor residual = block_input(pass, layer);
  const std::int64_t rows = pass.rows(), channels = config.n_embd;
  const Tensor grad_qkv = kept.gelu.slice(0, {rows, 3 * channels});
  const Tensor grad_attention = kept.gelu.slice(rows * 3 * channels, {rows, channels});

  const ConstTensor grad_out = dropout_backward(pass, buffers, pass.at(layer, Pass::attention_out));
  bias_backward_behind_dropout(pass, block.attention_out, grad_out, workspace);
  linear_backward(pass.context, block.attention_out, grad_out, kept.attention, grad_attention, pass.accumulate,
                  workspace);
  attention_backward(pass.context,
                     {grad_attention, kept.qkv, kept.attention, kept.lse, grad_qkv, pass.batch, config.n_head,
                      pass.at(layer, Pass::attention_weights)},
                     workspace);

  if (recomputes_norms()) norm_forward(pass.context, block.ln_1, residual, kept.normed_1, {});
  const Tensor grad_normed = kept.normed_1;
  bias_backward(pass.context, block.attention_in, grad_qkv, pass.accumulate, workspace);
  linear_backward(pass.context, block.attention_in, grad_qkv, kept.normed_1, grad_normed, pass.accumulate, workspace);
  norm_backward(pass.context, block.ln_1, grad_normed, residual, {kept.mean_1, kept.rstd_1}, buffers.grad_residual,
                true, pass.accumulate, workspace,
                layer == 0 ? Tensor() : summed_by_norm(pass, blocks[layer - 1].mlp_out));
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
