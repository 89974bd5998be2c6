#include <greyhound/train/stored_run.h>

#include <greyhound/core/memory.h>
#include <greyhound/train/build_model.h>
#include <greyhound/train/weights_file.h>

namespace greyhound {

namespace {

Config read_config(const RunDir& dir) {
  dir.require_run();
  return load_config(dir.config());
}

Tokenizer read_tokenizer(const RunDir& dir, const Config& config) {
  Tokenizer tokenizer = Tokenizer::load(dir.tokenizer());
  require(tokenizer.vocab_size() <= config.model.vocab_size, dir.tokenizer(), ": has ", tokenizer.vocab_size(),
          " tokens, but model.vocab_size of ", dir.config(), " is ", config.model.vocab_size);
  return tokenizer;
}

}  // namespace

StoredRun::StoredRun(const std::string& run_dir)
    : dir_(run_dir),
      config_(read_config(dir_)),
      tokenizer_(read_tokenizer(dir_, config_)),
      model_(build_model(config_)) {}

void StoredRun::load_model(const Context& context, const std::function<void(Gpt&, ArenaPlan&)>& plan_more) {
  ArenaPlan plan;
  const ArenaPlan::Slot weights =
      plan.add("parameters", "weights", model_.precision(), {model_.parameters().block_elements()});
  plan_more(model_, plan);
  arena_ = Arena(context, plan);
  step_ = load_weights(dir_.weights(), context, model_.parameters(), arena_[weights]);
  model_.bind(arena_, arena_[weights], {});
}

}  // namespace greyhound
