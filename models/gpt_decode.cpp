// Generation, one position at a time: forward of a single row, with keys and values of earlier positions kept.
#include <greyhound/kernels/attention.h>
#include <greyhound/kernels/matmul.h>
#include <greyhound/models/gpt_impl.h>

namespace greyhound {

ConstTensor Gpt::Impl::decode(const Context& context, std::int32_t token, std::int64_t position) {
  require(!keys.empty(), "model: generation was not planned");
  require(position >= 0 && position < config.block_size, "decode: position ", position, " is not below block_size ",
          config.block_size);
  require(token >= 0 && token < config.vocab_size, "decode: token ", token, " is not below vocab_size ",
          config.vocab_size);
  // The token is known here, so that its embedding is a sum of two rows: no copy to the device, which might wait.
  add_and_norm(context, blocks[0].ln_1,
               {token_embedding.value.row_range(token, 1),
                position_embedding.value.row_range(position, 1),
                generation.residual,
                {}},
               generation.normed, {});
  for (std::int64_t layer = 0; layer < config.n_layer; ++layer) decode_block(context, layer, position);
  return decode_logits(context);
}

// From ln_1's output to that of the norm behind the block, both in row.normed.
void Gpt::Impl::decode_block(const Context& context, std::int64_t layer, std::int64_t position) {
  const GptBlock& block = blocks[layer];
  const LayerNorm& next_norm = layer + 1 < config.n_layer ? blocks[layer + 1].ln_1 : ln_f;
  const GenerationBuffers<Tensor>& row = generation;
  linear_forward(context, block.attention_in, row.normed, row.qkv, generation_workspace);
  attention_decode(context, {row.qkv, keys[layer], values[layer], row.attention, config.n_head, position},
                   generation_workspace);
  linear_forward(context, block.attention_out, row.attention, row.branch, generation_workspace);
  add_and_norm(context, block.ln_2, {row.residual, row.branch, row.residual, {}}, row.normed, {});

  linear_gelu_forward(context, block.mlp_in, row.normed, {}, row.hidden, generation_workspace);
  linear_forward(context, block.mlp_out, row.hidden, row.branch, generation_workspace);
  add_and_norm(context, next_norm, {row.residual, row.branch, row.residual, {}}, row.normed, {});
}

ConstTensor Gpt::Impl::decode_logits(const Context& context) {
  const GenerationBuffers<Tensor>& row = generation;
  Matmul product;
  product.a = row.normed;
  product.b = head_weight.value;
  product.transpose_b = true;
  product.out = row.logits;
  matmul(context, product, generation_workspace);
  if (loss.softcap > 0) softcap(context, {row.logits, row.logits, loss.softcap});
  return row.logits.slice(0, {config.vocab_size});
}

}  // namespace greyhound
