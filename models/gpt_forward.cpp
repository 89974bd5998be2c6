// Forward, as in the GPT-2 paper: x = x + attention(ln_1(x)); x = x + mlp(ln_2(x)) for each block, then ln_f and the
// head.
#include <greyhound/kernels/attention.h>
#include <greyhound/kernels/embedding.h>
#include <greyhound/models/gpt_impl.h>

namespace greyhound {

void Gpt::Impl::forward(const Pass& pass, const ConstTensor& tokens, ErrorWord* errors) {
  embed(pass, tokens, activations(pass).embedded, errors);
  ConstTensor residual = activations(pass).embedded;
  for (std::int64_t layer = 0; layer < config.n_layer; ++layer) {
    attention_block(pass, layer, residual);
    mlp_block(pass, layer);
    residual = activations(pass, layer).residual;
  }
  final_norm(pass, residual);
}

// x = dropout(wte[token] + wpe[t])
void Gpt::Impl::embed(const Pass& pass, const ConstTensor& tokens, const Tensor& residual, ErrorWord* errors) {
  EmbeddingForward args;
  args.tokens = tokens;
  args.token_weight = token_embedding.value;
  args.position_weight = position_embedding.value;
  args.out = residual;
  args.vocab = config.vocab_size;
  args.errors = errors;
  embedding_forward(pass.context, args);
  if (pass.dropout > 0) dropout_apply(pass.context, {residual, residual, pass.at_embedding()});
}

// residual_mid = x + dropout(c_proj(attention(c_attn(ln_1(x)))))
void Gpt::Impl::attention_block(const Pass& pass, std::int64_t layer, const ConstTensor& residual) {
  const GptBlock& block = blocks[layer];
  const BlockActivations<Tensor> out = activations(pass, layer);
  const Tensor branch = activations(pass).branch;
  norm_forward(pass.context, block.ln_1, residual, out.normed_1, {out.mean_1, out.rstd_1});
  linear_forward(pass.context, block.attention_in, out.normed_1, out.qkv, workspace);
  attention_forward(
      pass.context,
      {out.qkv, out.attention, out.lse, pass.batch, config.n_head, pass.at(layer, Pass::attention_weights)}, workspace);
  linear_forward(pass.context, block.attention_out, out.attention, branch, workspace);
  residual_forward(pass.context, {residual, branch, out.residual_mid, pass.at(layer, Pass::attention_out)});
}

// residual = residual_mid + dropout(c_proj(gelu(c_fc(ln_2(residual_mid)))))
void Gpt::Impl::mlp_block(const Pass& pass, std::int64_t layer) {
  const GptBlock& block = blocks[layer];
  const BlockActivations<Tensor> out = activations(pass, layer);
  const Tensor branch = activations(pass).branch;
  norm_forward(pass.context, block.ln_2, out.residual_mid, out.normed_2, {out.mean_2, out.rstd_2});
  const Tensor hidden = pass.training ? out.hidden : Tensor{};
  linear_gelu_forward(pass.context, block.mlp_in, out.normed_2, hidden, out.gelu, workspace);
  linear_forward(pass.context, block.mlp_out, out.gelu, branch, workspace);
  residual_forward(pass.context, {out.residual_mid, branch, out.residual, pass.at(layer, Pass::mlp_out)});
}

void Gpt::Impl::final_norm(const Pass& pass, const ConstTensor& residual) {
  const SharedActivations<Tensor> out = activations(pass);
  norm_forward(pass.context, ln_f, residual, out.normed_f, {out.mean_f, out.rstd_f});
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
    gradients.input = loss::overwrite(buffers.branch);
    gradients.weight = {head_weight.grad, pass.accumulate};
  } else {
    options.reduction = loss::Reduction::sum;
  }
  loss::chunked_linear_cross_entropy(pass.context, loss_plan, inputs, options, gradients, loss_workspace, sums);
}

}  // namespace greyhound
