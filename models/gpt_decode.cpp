// Generation, one position at a time: forward of a single row, with keys and values of earlier positions kept.
#include <greyhound/core/memory.h>
#include <greyhound/kernels/attention.h>
#include <greyhound/kernels/embedding.h>
#include <greyhound/kernels/matmul.h>
#include <greyhound/kernels/selective_log_softmax.h>
#include <greyhound/models/gpt_impl.h>

#include <numeric>

namespace greyhound {

ConstTensor Gpt::Impl::decode(const Context& context, std::int32_t token, std::int64_t position) {
  require(!keys.empty(), "model: generation was not planned");
  require(position >= 0 && position < config.block_size, "decode: position ", position, " is not below block_size ",
          config.block_size);
  require(token >= 0 && token < config.vocab_size, "decode: token ", token, " is not below vocab_size ",
          config.vocab_size);
  copy_bytes(context, generation.token.data, generation.token.device, &token, Device::cpu(), sizeof token);
  EmbeddingForward args;
  args.tokens = generation.token;
  args.token_weight = token_embedding.value;
  args.position_weight = position_embedding.value;
  args.out = generation.residual;
  args.vocab = config.vocab_size;
  args.first_position = position;
  embedding_forward(context, args);
  for (std::int64_t layer = 0; layer < config.n_layer; ++layer) decode_block(context, layer, position);
  return decode_logits(context);
}

void Gpt::Impl::decode_block(const Context& context, std::int64_t layer, std::int64_t position) {
  const GptBlock& block = blocks[layer];
  const GenerationBuffers<Tensor>& row = generation;
  norm_forward(context, block.ln_1, row.residual, row.normed, {});
  linear_forward(context, block.attention_in, row.normed, row.qkv, generation_workspace);
  attention_decode(context, {row.qkv, keys[layer], values[layer], row.attention, config.n_head, position},
                   generation_workspace);
  linear_forward(context, block.attention_out, row.attention, row.branch, generation_workspace);
  residual_forward(context, {row.residual, row.branch, row.residual, {}});

  norm_forward(context, block.ln_2, row.residual, row.normed, {});
  linear_gelu_forward(context, block.mlp_in, row.normed, {}, row.hidden, generation_workspace);
  linear_forward(context, block.mlp_out, row.hidden, row.branch, generation_workspace);
  residual_forward(context, {row.residual, row.branch, row.residual, {}});
}

ConstTensor Gpt::Impl::decode_logits(const Context& context) {
  const GenerationBuffers<Tensor>& row = generation;
  norm_forward(context, ln_f, row.residual, row.normed, {});
  Matmul product;
  product.a = row.normed;
  product.b = head_weight.value;
  product.transpose_b = true;
  product.out = row.logits;
  matmul(context, product, generation_workspace);
  const Shape classes = {config.vocab_size};
  if (loss.softcap == 0) return row.logits.slice(0, classes);

  // The softcap belongs to the model's distribution. Log-probabilities of every class apply it, and are logits too.
  if (!every_class_written) {
    std::vector<std::int32_t> indices(static_cast<std::size_t>(config.vocab_size));
    std::iota(indices.begin(), indices.end(), 0);
    copy_bytes(context, row.every_class.data, row.every_class.device, indices.data(), Device::cpu(),
               indices.size() * sizeof(std::int32_t));
    context.synchronize();
    every_class_written = true;
  }
  SelectiveLogSoftmax args;
  args.logits = row.logits;
  args.index = row.every_class;
  args.out = row.log_probabilities;
  args.vocab = config.vocab_size;
  args.ignore_index = -1;
  args.softcap = loss.softcap;
  selective_log_softmax_rows(context, args);
  return row.log_probabilities.slice(0, classes);
}

}  // namespace greyhound
