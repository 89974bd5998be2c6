// What model.init_from settles: keys of the configuration, the tokenizer, the initial weights.
#include <greyhound/core/error.h>
#include <greyhound/train/config_schema.h>
#include <greyhound/train/gpt2_import.h>
#include <greyhound/train/run_dir.h>

#include <filesystem>
#include <vector>

namespace greyhound {

namespace fs = std::filesystem;

namespace {

struct SettledKey {
  const char* section;
  const char* key;
  ConfigValue value;
};

// The tokens that the weights know.
std::vector<SettledKey> settled_tokenizer(const std::string& path) {
  const auto holds = [&](const char* file) {
    std::error_code ignored;
    return fs::exists(path + "/" + file, ignored);
  };
  const SettledKey of_the_folder{"data", "tokenizer", path};
  if (!is_run_folder(path)) {
    const bool has = holds("tokenizer.json") || (holds("vocab.json") && holds("merges.txt"));
    return has ? std::vector{of_the_folder} : std::vector<SettledKey>{};
  }
  switch (Tokenizer::load(RunDir(path).tokenizer()).kind()) {
    case TokenizerKind::byte: return {{"data", "tokenizer", std::string("byte")}};
    case TokenizerKind::character: return {{"data", "tokenizer", std::string("char")}};
    case TokenizerKind::bpe: return {of_the_folder};
    case TokenizerKind::ids: break;
  }
  return {};
}

// The keys that a trained model settles, with its values.
std::vector<SettledKey> settled_keys(const std::string& path) {
  const Gpt2Sizes sizes = open_model(path).sizes;
  std::vector<SettledKey> keys = settled_tokenizer(path);
  const auto add = [&](const char* key, const ConfigValue& value) { keys.push_back({"model", key, value}); };
  add("n_layer", sizes.n_layer);
  add("n_head", sizes.n_head);
  add("n_embd", sizes.n_embd);
  add("block_size", sizes.block_size);
  add("vocab_size", sizes.vocab_size);
  add("bias", sizes.bias);
  add("tie_embeddings", sizes.tie_embeddings);
  return keys;
}

bool agrees(const std::string& key, const ConfigValue& given, const ConfigValue& stored) {
  if (given == stored) return true;
  if (key == "model.block_size") return std::get<std::int64_t>(given) < std::get<std::int64_t>(stored);
  if (key != "data.tokenizer") return false;
  // One BPE tokenizer may lie in many places.
  const auto is_path = [](const ConfigValue& value) {
    return value != ConfigValue(std::string("byte")) && value != ConfigValue(std::string("char"));
  };
  return is_path(given) && is_path(stored);
}

// The Errors of `work` again, starting with the key's name.
template <class Work>
auto naming_the_key(const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    const std::string message = concat("model.init_from: ", error.what());
    if (error.exit_code() == 2) throw_usage(message);
    throw_runtime(message);
  }
}

}  // namespace

void complete_model_section(Config& config, const std::set<std::string>& given) {
  const std::string path = config.model.init_from;
  if (path.empty()) return;
  std::error_code ignored;
  require(!fs::equivalent(path, config.run.dir, ignored), "model.init_from and run.dir are the same folder, ", path);
  std::string differences;
  for (const SettledKey& settled : naming_the_key([&] { return settled_keys(path); })) {
    const ConfigKey& key = *find_config_key(settled.section, settled.key);
    const ConfigValue value = key.get(config);
    const bool open =
        given.count(key.name()) == 0 || (key.name() == "model.vocab_size" && config.model.vocab_size == 0);
    if (open) {
      key.set(config, settled.value);
    } else if (!agrees(key.name(), value, settled.value)) {
      differences += concat(differences.empty() ? "" : "; ", key.name(), " is ", format_value(value, false),
                            ", the model's is ", format_value(settled.value, false));
    }
  }
  require(differences.empty(), "model.init_from ", path, ": ", differences,
          " (keys that are left out take the model's)");
}

std::optional<Tokenizer> initial_tokenizer(const Config& config) {
  if (config.model.init_from.empty() || !is_run_folder(config.model.init_from)) return std::nullopt;
  Tokenizer tokenizer = Tokenizer::load(RunDir(config.model.init_from).tokenizer());
  // BPE is in data.tokenizer; that of bare ids says nothing.
  if (tokenizer.kind() == TokenizerKind::ids || tokenizer.kind() == TokenizerKind::bpe) return std::nullopt;
  return tokenizer;
}

void initialize_weights(const Context& context, const Config& config, const ParameterList& parameters,
                        const Tensor& weights) {
  if (config.model.init_from.empty()) {
    parameters.initialize(context, weights, static_cast<std::uint64_t>(config.run.seed));
  } else {
    load_weights(open_model(config.model.init_from), context, parameters, weights);
  }
}

}  // namespace greyhound
