// Forward, as in the GPT-2 paper: x = x + attention(ln_1(x)); x = x + mlp(ln_2(x)) for each block, then ln_f and the
// head. Every addition to x is made together with the norm that follows it, in one pass over memory.
#include <greyhound/kernels/attention.h>
#include <greyhound/kernels/embedding.h>
#include <greyhound/models/gpt_impl.h>

namespace greyhound {

void Gpt::Impl::forward(const Pass& pass, const ConstTensor& tokens, ErrorWord* errors) {
  embed(pass, tokens, errors);
  first_norm(pass, 0);
  for (std::int64_t layer = 0; layer < config.n_layer; ++layer) {
    attention_block(pass, layer);
    mlp_block(pass, layer);
  }
}

// x = dropout(wte[token] + wpe[t])
void Gpt::Impl::embed(const Pass& pass, const ConstTensor& tokens, ErrorWord* errors) {
  const Tensor embedded = activations(pass).embedded;
  EmbeddingForward args;
  args.tokens = tokens;
  args.token_weight = token_embedding.value;
  args.position_weight = position_embedding.value;
  args.out = embedded;
  args.vocab = config.vocab_size;
  args.errors = errors;
  embedding_forward(pass.context, args);
  if (pass.dropout > 0) dropout_apply(pass.context, {embedded, embedded, pass.at_embedding()});
}

// normed_1 = ln_1(x), where it does not follow an addition: before the first block.
void Gpt::Impl::first_norm(const Pass& pass, std::int64_t layer) {
  const BlockActivations<Tensor> out = activations(pass, layer);
  norm_forward(pass.context, blocks[layer].ln_1, block_input(pass, layer), out.normed_1, {out.mean_1, out.rstd_1});
}

// residual_mid = x + dropout(c_proj(attention(c_attn(normed_1)))); normed_2 = ln_2(residual_mid)
void Gpt::Impl::attention_block(const Pass& pass, std::int64_t layer) {
  const GptBlock& block = blocks[layer];
  const BlockActivations<Tensor> out = activations(pass, layer);
  linear_forward(pass.context, block.attention_in, out.normed_1, out.qkv, workspace);
  attention_forward(
      pass.context,
      {out.qkv, out.attention, out.lse, pass.batch, config.n_head, pass.at(layer, Pass::attention_weights)}, workspace);
  linear_forward(pass.context, block.attention_out, out.attention, out.residual_mid, workspace);
  add_and_norm(pass.context, block.ln_2,
               {block_input(pass, layer), out.residual_mid, out.residual_mid, pass.at(layer, Pass::attention_out)},
               out.normed_2, {out.mean_2, out.rstd_2});
}

// hidden = c_fc(normed_2), gelu = gelu(hidden)
void Gpt::Impl::mlp_hidden(const Pass& pass, std::int64_t layer) {
  const BlockActivations<Tensor> out = activations(pass, layer);
  const Tensor hidden = pass.training ? out.hidden : Tensor{};
  linear_gelu_forward(pass.context, blocks[layer].mlp_in, out.normed_2, hidden, out.gelu, workspace);
}

// residual = residual_mid + dropout(c_proj(gelu(c_fc(normed_2)))), and the norm that comes next: ln_1 of the block
// behind this one, or ln_f.
void Gpt::Impl::mlp_block(const Pass& pass, std::int64_t layer) {
  const BlockActivations<Tensor> out = activations(pass, layer);
  mlp_hidden(pass, layer);
  linear_forward(pass.context, blocks[layer].mlp_out, out.gelu, out.residual, workspace);
  const ResidualForward sum = {out.residual_mid, out.residual, out.residual, pass.at(layer, Pass::mlp_out)};
  if (layer + 1 < config.n_layer) {
    const BlockActivations<Tensor> next = activations(pass, layer + 1);
    add_and_norm(pass.context, blocks[layer + 1].ln_1, sum, next.normed_1, {next.mean_1, next.rstd_1});
  } else {
    const SharedActivations<Tensor> last = activations(pass);
    add_and_norm(pass.context, ln_f, sum, last.normed_f, {last.mean_f, last.rstd_f});
  }
}

void Gpt::Impl::head(const Pass& pass, const ConstTensor& targets, const ConstTensor& denominator,
                     loss::LossSums& sums) {
  const SharedActivations<Tensor> buffers = activations(pass);
  loss::LinearInputs inputs;
  inputs.inputs = buffers.normed_f;
  inputs.weight = head_weight.value;
  inputs.targets = targets.reshape({pass.rows()});

  loss::CrossEntropyOptions options;
  options.ignore_index = loss.ignore_index;
  options.label_smoothing = loss.label_smoothing;
  options.z_loss_multiplier = loss.z_loss_multiplier;
  options.softcap = loss.softcap;

  loss::LinearGradients gradients;
  if (pass.training) {
    options.denominator = denominator;
    gradients.input = loss::overwrite(buffers.grad_residual);
    gradients.weight = {head_weight.grad, pass.accumulate};
  } else {
    options.reduction = loss::Reduction::sum;
  }
  loss::chunked_linear_cross_entropy(pass.context, loss_plan, inputs, options, gradients, loss_workspace, sums);
}

}  // namespace greyhound
