// A run that was trained earlier: its configuration, tokenizer and weights.
#pragma once

#include <greyhound/models/gpt.h>
#include <greyhound/train/config.h>
#include <greyhound/train/run_dir.h>
#include <greyhound/train/tokenizer.h>

#include <cstdint>
#include <functional>
#include <string>

namespace greyhound {

class StoredRun {
 public:
  // Reads config.yaml and tokenizer.json. Throws an Error that names what is missing or does not fit.
  explicit StoredRun(const std::string& run_dir);

  // Plans the weights and what `plan_more` adds, allocates, and loads model.safetensors.
  void load_model(const Context& context, const std::function<void(Gpt&, ArenaPlan&)>& plan_more);

  const Config& config() const { return config_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  Gpt& model() { return model_; }
  const Arena& arena() const { return arena_; }
  std::int64_t step() const { return step_; }  // at which the weights were saved

 private:
  RunDir dir_;
  Config config_;
  Tokenizer tokenizer_;
  Gpt model_;
  Arena arena_;
  std::int64_t step_ = 0;
};

}  // namespace greyhound
