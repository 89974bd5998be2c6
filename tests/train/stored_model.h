// Runs and models on disk, for tests of what reads and writes them.
#pragma once

#include "test_files.h"
#include "toy_run.h"

#include <greyhound/core/rng.h>
#include <greyhound/train/build_model.h>
#include <greyhound/train/gpt2_import.h>
#include <greyhound/train/weights_file.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace greyhound::testing {

// Writes the folder of an untrained run of the toy model and returns its weights, the whole block.
inline std::vector<float> make_run(const std::string& folder, const std::vector<std::string>& overrides = {},
                                   const Tokenizer& tokenizer = Tokenizer::ids(17)) {
  const ToyRun toy_run(toy(overrides));
  std::filesystem::create_directories(folder);
  write_file(folder + "/config.yaml", to_yaml(toy_run.config));
  tokenizer.save(folder + "/tokenizer.json");
  // Biases and norms start as zeros and ones, which would hide a tensor in another's place.
  const Tensor weights = toy_run.buffers.optimizer.weights();
  for (const Parameter& parameter : toy_run.buffers.model.parameters().all()) {
    float* values = ParameterList::view(weights, parameter).as<float>();
    for (std::int64_t i = 0; i < parameter.logical_rows * parameter.shape.columns(); ++i) {
      values[i] += 1e-3f * static_cast<float>((parameter.offset + i) % 997);
    }
  }
  save_weights(folder + "/model.safetensors", toy_run.context, toy_run.buffers.model.parameters(), weights, 7);
  return toy_run.weights();
}

// The whole block of a model that starts from `config`.
inline std::vector<float> initial_weights(const Config& config) { return ToyRun(config).weights(); }

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Logits [tokens, V] of a stored model, position by position.
inline std::vector<std::vector<float>> logits_of(const ModelFile& file, const std::vector<std::int32_t>& tokens) {
  const Context context = Context::cpu();
  Config config = default_config();
  config.model.n_layer = file.sizes.n_layer;
  config.model.n_head = file.sizes.n_head;
  config.model.n_embd = file.sizes.n_embd;
  config.model.block_size = file.sizes.block_size;
  config.model.vocab_size = file.sizes.vocab_size;
  config.model.bias = file.sizes.bias;
  config.model.tie_embeddings = file.sizes.tie_embeddings;
  Gpt model = build_model(config);
  ArenaPlan plan;
  const auto slot = plan.add("parameters", "weights", DType::fp32, {model.parameters().block_elements()});
  model.plan_generation(context, plan);
  const Arena arena(context, plan);
  load_weights(file, context, model.parameters(), arena[slot]);
  model.bind(arena, arena[slot], {});
  std::vector<std::vector<float>> rows;
  for (std::size_t position = 0; position < tokens.size(); ++position) {
    const ConstTensor logits = model.decode(context, tokens[position], static_cast<std::int64_t>(position));
    rows.emplace_back(logits.as<float>(), logits.as<float>() + file.sizes.vocab_size);
  }
  return rows;
}

// Damages some bytes of `bytes` among the first `within`, and cuts a part off now and then.
inline std::string damaged(std::string bytes, std::size_t within, std::uint64_t seed) {
  const auto draw = [&](std::uint64_t of, std::uint64_t below) { return mix_key(seed, of) % below; };
  for (std::uint64_t i = 0; i <= draw(0, 3); ++i) {
    bytes[draw(3 * i + 1, within)] = static_cast<char>(draw(3 * i + 2, 4) == 0 ? 0xff : draw(3 * i + 3, 256));
  }
  if (draw(100, 8) == 0) bytes.resize(draw(101, bytes.size()));
  return bytes;
}

// Every number of the model is read: one outside its file would end the program, or be seen by a sanitizer.
inline double sum_of(const ModelFile& model) {
  double sum = 0;
  std::vector<float> values;
  for (const auto& [name, stored] : model.tensors) {
    values.resize(static_cast<std::size_t>(stored.values.elements()));
    read_tensor({stored.values, false}, tensor(values.data(), DType::fp32, stored.values.shape));
    for (const float value : values) sum += value;
  }
  return sum;
}

}  // namespace greyhound::testing
