// The tensors of GPT-2: Hugging Face's names and shapes, in the order in which llm.c's files hold them.
#pragma once

#include <greyhound/core/tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>

namespace greyhound {

struct Gpt2Sizes {
  std::int64_t n_layer = 0, n_head = 0, n_embd = 0;
  std::int64_t block_size = 0;  // positions
  std::int64_t vocab_size = 0;
  bool bias = true;            // in linear layers and layer norms
  bool tie_embeddings = true;  // otherwise there is a tensor lm_head.weight
};

struct Gpt2Tensor {
  enum class Rows { vocab, positions, width };
  const char* name;  // of a tensor that every block has: what follows "h.N."
  bool in_block;
  Rows rows;
  int row_widths;     // with Rows::width: rows = row_widths * n_embd
  int column_widths;  // columns = column_widths * n_embd; 0: a vector

  // Hugging Face stores these as [in, out], everything else, and llm.c and we all of them, as [out, in].
  bool is_linear_weight() const { return in_block && column_widths > 0; }
  bool is_bias() const { return std::string_view(name).ends_with(".bias"); }
  Shape shape(const Gpt2Sizes& sizes) const;
  std::string full_name(std::int64_t layer) const;
};

inline constexpr std::array<Gpt2Tensor, 16> gpt2_tensors = {{
    {"wte.weight", false, Gpt2Tensor::Rows::vocab, 0, 1},
    {"wpe.weight", false, Gpt2Tensor::Rows::positions, 0, 1},
    {"ln_1.weight", true, Gpt2Tensor::Rows::width, 1, 0},
    {"ln_1.bias", true, Gpt2Tensor::Rows::width, 1, 0},
    {"attn.c_attn.weight", true, Gpt2Tensor::Rows::width, 3, 1},
    {"attn.c_attn.bias", true, Gpt2Tensor::Rows::width, 3, 0},
    {"attn.c_proj.weight", true, Gpt2Tensor::Rows::width, 1, 1},
    {"attn.c_proj.bias", true, Gpt2Tensor::Rows::width, 1, 0},
    {"ln_2.weight", true, Gpt2Tensor::Rows::width, 1, 0},
    {"ln_2.bias", true, Gpt2Tensor::Rows::width, 1, 0},
    {"mlp.c_fc.weight", true, Gpt2Tensor::Rows::width, 4, 1},
    {"mlp.c_fc.bias", true, Gpt2Tensor::Rows::width, 4, 0},
    {"mlp.c_proj.weight", true, Gpt2Tensor::Rows::width, 1, 4},
    {"mlp.c_proj.bias", true, Gpt2Tensor::Rows::width, 1, 0},
    {"ln_f.weight", false, Gpt2Tensor::Rows::width, 1, 0},
    {"ln_f.bias", false, Gpt2Tensor::Rows::width, 1, 0},
}};

inline constexpr const char* lm_head_name = "lm_head.weight";

// Every tensor of a model of these sizes, kind by kind, each for all layers before the next kind, as in llm.c's files;
// an untied head comes last. Biases are left out where the model has none.
void for_each_gpt2_tensor(const Gpt2Sizes& sizes,
                          const std::function<void(const Gpt2Tensor& kind, const std::string& name)>& visit);

// "12 layers, 12 heads, 768 wide, 1024 positions, vocabulary 50257".
std::string to_string(const Gpt2Sizes& sizes);

}  // namespace greyhound
