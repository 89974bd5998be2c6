#include <greyhound/train/gpt2_layout.h>

namespace greyhound {

Shape Gpt2Tensor::shape(const Gpt2Sizes& sizes) const {
  const std::int64_t count = rows == Rows::vocab       ? sizes.vocab_size
                             : rows == Rows::positions ? sizes.block_size
                                                       : row_widths * sizes.n_embd;
  return column_widths == 0 ? Shape{count} : Shape{count, column_widths * sizes.n_embd};
}

std::string Gpt2Tensor::full_name(std::int64_t layer) const {
  return in_block ? concat("h.", layer, ".", name) : std::string(name);
}

void for_each_gpt2_tensor(const Gpt2Sizes& sizes,
                          const std::function<void(const Gpt2Tensor& kind, const std::string& name)>& visit) {
  for (const Gpt2Tensor& kind : gpt2_tensors) {
    if (kind.is_bias() && !sizes.bias) continue;
    for (std::int64_t layer = 0; layer < (kind.in_block ? sizes.n_layer : 1); ++layer)
      visit(kind, kind.full_name(layer));
  }
  if (!sizes.tie_embeddings) visit({lm_head_name, false, Gpt2Tensor::Rows::vocab, 0, 1}, lm_head_name);
}

std::string to_string(const Gpt2Sizes& sizes) {
  return concat(sizes.n_layer, sizes.n_layer == 1 ? " layer, " : " layers, ", sizes.n_head,
                sizes.n_head == 1 ? " head, " : " heads, ", sizes.n_embd, " wide, ", sizes.block_size,
                " positions, vocabulary ", sizes.vocab_size);
}

}  // namespace greyhound
