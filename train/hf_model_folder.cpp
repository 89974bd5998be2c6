#include <greyhound/train/hf_model_folder.h>

#include <greyhound/core/error.h>
#include <greyhound/core/version.h>
#include <greyhound/train/file_io.h>
#include <greyhound/train/mapped_file.h>
#include <greyhound/train/one_line.h>
#include <greyhound/train/safetensors.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace greyhound {

namespace fs = std::filesystem;

namespace {

constexpr const char* prefix = "transformer.";
constexpr std::size_t most_config_bytes = 1 << 20;
constexpr double epsilon = 1e-5;

// config.json of one folder; every message starts with its path.
class HfConfig {
 public:
  explicit HfConfig(const std::string& path) : path_(path) {
    const MappedFile file(path);
    if (file.size() > most_config_bytes) {
      throw_runtime(path, ": expected at most ", most_config_bytes, " bytes, found ", file.size());
    }
    json_ = nlohmann::json::parse(file.text(), nullptr, false);
    if (!json_.is_object()) throw_runtime(path, ": is not a JSON object");
  }

  Gpt2Sizes sizes() const {
    Gpt2Sizes sizes;
    // Products of two of these stay within 64 bits.
    sizes.n_layer = size("n_layer", 1 << 16);
    sizes.n_head = size("n_head", 1 << 16);
    sizes.n_embd = size("n_embd", 1 << 20);
    sizes.block_size = size(has("n_positions") ? "n_positions" : "n_ctx", 1 << 24);
    sizes.vocab_size = size("vocab_size", 0x7fffffff);
    sizes.tie_embeddings = flag("tie_word_embeddings", true);
    if (sizes.n_embd % sizes.n_head != 0) fail("n_embd", concat("a multiple of n_head ", sizes.n_head));
    return sizes;
  }

  // What would give other logits than ours.
  void check_architecture(const Gpt2Sizes& sizes) const {
    if (has("model_type") && json_["model_type"] != "gpt2") fail("model_type", "gpt2");
    // Three names of one formula, the approximation of GELU by tanh.
    const std::string activation = has("activation_function") ? json_["activation_function"].dump() : "\"gelu_new\"";
    if (activation != "\"gelu_new\"" && activation != "\"gelu_pytorch_tanh\"" && activation != "\"gelu_fast\"") {
      fail("activation_function", "gelu_new");
    }
    if (has("layer_norm_epsilon") &&
        !(json_["layer_norm_epsilon"].is_number() && json_["layer_norm_epsilon"].get<double>() == epsilon)) {
      fail("layer_norm_epsilon", "1e-5");
    }
    if (has("n_inner") && json_["n_inner"] != 4 * sizes.n_embd) fail("n_inner", concat(4 * sizes.n_embd, " or null"));
    if (!flag("scale_attn_weights", true)) fail("scale_attn_weights", "true");
    if (flag("scale_attn_by_inverse_layer_idx", false)) fail("scale_attn_by_inverse_layer_idx", "false");
    if (flag("add_cross_attention", false)) fail("add_cross_attention", "false");
  }

 private:
  [[noreturn]] void fail(const char* key, const std::string& expected) const {
    std::string found =
        json_.contains(key) ? json_[key].dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) : "nothing";
    if (found.size() > 60) found = found.substr(0, 60) + "...";
    throw_runtime(path_, ": ", key, ": expected ", expected, ", found ", found);
  }
  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  bool flag(const char* key, bool absent) const {
    if (!has(key)) return absent;
    if (!json_[key].is_boolean()) fail(key, "true or false");
    return json_[key].get<bool>();
  }
  std::int64_t size(const char* key, std::uint64_t most) const {
    const bool whole = has(key) && json_[key].is_number_unsigned();
    if (!whole || json_[key].get<std::uint64_t>() < 1 || json_[key].get<std::uint64_t>() > most) {
      fail(key, concat("a whole number from 1 to ", most));
    }
    return json_[key].get<std::int64_t>();
  }

  std::string path_;
  nlohmann::json json_;
};

void require_weights(const std::string& folder, const std::string& weights) {
  std::error_code ignored;
  if (fs::exists(weights, ignored)) return;
  for (const char* other : {"model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (fs::exists(folder + "/" + other, ignored)) {
      throw_runtime(folder, ": expected the weights in one model.safetensors, found ", other,
                    " (transformers' save_pretrained with a large max_shard_size writes one)");
    }
  }
  throw_runtime(folder, ": holds no model.safetensors");
}

// "attn.bias" and "attn.masked_bias" of old files are the causal mask.
bool is_mask(const std::string& name) { return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"); }

bool same_values(const ConstTensor& a, const ConstTensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape && std::memcmp(a.data, b.data, a.bytes()) == 0;
}

nlohmann::ordered_json config_of(const Gpt2Sizes& sizes, DType dtype, double dropout, std::int32_t end_of_text) {
  const nlohmann::ordered_json end = end_of_text >= 0 ? nlohmann::ordered_json(end_of_text) : nlohmann::ordered_json();
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"activation_function", "gelu_new"},
          {"attn_pdrop", dropout},
          {"embd_pdrop", dropout},
          {"resid_pdrop", dropout},
          {"bos_token_id", end},
          {"eos_token_id", end},
          {"initializer_range", 0.02},
          {"layer_norm_epsilon", epsilon},
          {"n_ctx", sizes.block_size},
          {"n_embd", sizes.n_embd},
          {"n_head", sizes.n_head},
          {"n_inner", nullptr},
          {"n_layer", sizes.n_layer},
          {"n_positions", sizes.block_size},
          {"scale_attn_weights", true},
          {"tie_word_embeddings", sizes.tie_embeddings},
          {"torch_dtype", dtype == DType::bf16 ? "bfloat16" : "float32"},
          {"use_cache", true},
          {"vocab_size", sizes.vocab_size}};
}

}  // namespace

ModelFile read_hf_model(const std::string& folder) {
  const HfConfig config(folder + "/config.json");
  ModelFile model;
  model.path = folder + "/model.safetensors";
  model.format = "Hugging Face GPT-2";
  model.sizes = config.sizes();
  config.check_architecture(model.sizes);
  require_weights(folder, model.path);
  const auto file = std::make_shared<const SafetensorsFile>(model.path);
  model.file = file;

  const std::string before = file->contains(std::string(prefix) + "wte.weight") ? prefix : "";
  const auto stored_name = [&](const std::string& name) { return name == lm_head_name ? name : before + name; };
  // A missing tensor ends this, so that a number of layers that the file does not hold costs nothing.
  for_each_gpt2_tensor(model.sizes, [&](const Gpt2Tensor& kind, const std::string& name) {
    add_tensor(model, kind, name, {(*file)[stored_name(name)], kind.is_linear_weight()});
  });
  for (const std::string& name : file->names()) {
    const bool ours = name.rfind(before, 0) == 0 && model.tensors.count(name.substr(before.size())) > 0;
    if (ours || is_mask(name) || (name == lm_head_name && model.tensors.count(name) > 0)) continue;
    if (name != lm_head_name)
      throw_runtime(model.path, ": holds a tensor ", one_line(name), ", which GPT-2 does not have");
    if (!same_values((*file)[name], model.tensors.at("wte.weight").values)) {
      throw_runtime(model.path, ": lm_head.weight differs from ", before,
                    "wte.weight, but config.json does not say \"tie_word_embeddings\": false");
    }
  }
  return model;
}

void write_hf_model(const std::string& folder, const ModelFile& model, DType dtype, double dropout,
                    std::int32_t end_of_text) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw_runtime(folder, ": the folder cannot be made: ", error.message());

  std::vector<std::vector<std::byte>> buffers;
  std::vector<NamedTensor> tensors;
  for_each_gpt2_tensor(model.sizes, [&](const Gpt2Tensor& kind, const std::string& name) {
    const StoredTensor& stored = model.tensors.at(name);
    const Shape logical = kind.shape(model.sizes);
    const bool transpose = kind.is_linear_weight();
    const Shape shape = transpose ? Shape{logical[1], logical[0]} : logical;
    buffers.emplace_back(static_cast<std::size_t>(shape.elements()) * size_of(dtype));
    const Tensor values(buffers.back().data(), dtype, shape);
    read_tensor({stored.values, stored.transposed != transpose}, values);
    tensors.push_back({name == lm_head_name ? name : prefix + name, values});
  });
  write_atomically(folder + "/config.json", config_of(model.sizes, dtype, dropout, end_of_text).dump(2) + "\n");
  write_safetensors(folder + "/model.safetensors", tensors,
                    {{"format", "pt"}, {"greyhound_version", GREYHOUND_VERSION}});
}

}  // namespace greyhound
