#include <greyhound/core/error.h>
#include <greyhound/train/batch_plan.h>
#include <greyhound/train/config.h>
#include <greyhound/train/config_schema.h>
#include <greyhound/train/input_file.h>
#include <greyhound/train/one_line.h>
#include <greyhound/train/yaml_reader.h>

namespace greyhound {
namespace {

constexpr std::uint64_t most_config_bytes = 16 << 20;

void apply(Config& config, std::set<std::string>& given, const YamlEntry& entry) {
  require(is_config_section(entry.section), entry.section_where, ": unknown section ", entry.section,
          suggest_section(entry.section));
  if (entry.key.empty()) return;
  const ConfigKey* key = find_config_key(entry.section, entry.key);
  if (key == nullptr) {
    throw_usage(entry.key_where, ": unknown key ", entry.section, ".", entry.key,
                suggest_key(entry.section, entry.key));
  }
  key->set(config, parse_value(*key, entry.text, entry.quoted, entry.where));
  given.insert(key->name());
}

// "section.key=value" as a shell passes it.
YamlEntry read_override(const std::string& text) {
  const std::string where = "override '" + text + "'";
  const std::size_t equals = text.find('=');
  const std::size_t dot = text.find('.');
  require(equals != std::string::npos && equals > 0 && dot > 0, where, ": expected section.key=value");
  require(dot < equals, where, ": expected section.key=value", suggest_section(text.substr(0, equals)));
  YamlEntry entry = read_yaml_scalar(text.substr(equals + 1), where);
  entry.section = text.substr(0, dot);
  entry.key = text.substr(dot + 1, equals - dot - 1);
  require(!entry.key.empty(), where, ": expected section.key=value");
  return entry;
}

}  // namespace

Config default_config() {
  Config config;
  for (const ConfigKey& key : config_schema()) key.set(config, key.default_value);
  return config;
}

Config parse_config(const std::string& text, const std::string& name, const std::vector<std::string>& overrides,
                    const ConfigCompletion& complete) try {
  Config config = default_config();
  std::set<std::string> given;
  for (const YamlEntry& entry : read_yaml(text, name)) apply(config, given, entry);
  for (const std::string& override_text : overrides) apply(config, given, read_override(override_text));
  if (complete) complete(config, given);
  try {
    validate(config);
  } catch (const Error& error) {
    throw_usage(name, overrides.empty() ? "" : " with overrides", ": ", error.what());
  }
  return config;
} catch (const Error& error) {
  throw Error(error.kind(), one_line(error.what()));  // messages repeat what the file says
}

Config load_config(const std::string& path, const std::vector<std::string>& overrides,
                   const ConfigCompletion& complete) {
  std::string text;
  try {
    text = read_small_file(path, most_config_bytes);
  } catch (const Error& error) {
    throw_usage("cannot read the configuration ", path, ": ", error.what());
  }
  return parse_config(text, path, overrides, complete);
}

std::string to_yaml(const Config& config) {
  std::string text, section;
  for (const ConfigKey& key : config_schema()) {
    if (key.section != section) text += (text.empty() ? "" : "\n") + key.section + ":\n";
    section = key.section;
    text += "  " + key.key + ": " + format_value(key.get(config), key.choices.empty()) + "\n";
  }
  return text;
}

void validate(const Config& config) {
  for (const ConfigKey& key : config_schema()) check_range(key, key.get(config), "configuration");

  const Config::Model& model = config.model;
  require(model.n_embd % model.n_head == 0, "model.n_embd ", model.n_embd, " is not a multiple of model.n_head ",
          model.n_head);
  require(config.schedule.warmup_steps <= config.train.max_steps, "schedule.warmup_steps ",
          config.schedule.warmup_steps, " is longer than the run, train.max_steps ", config.train.max_steps);
  plan_batch(config.train.micro_batch, config.train.batch_tokens, model.block_size, 1);

  const Config::Data& data = config.data;
  require(!config.run.dir.empty(), "run.dir is empty: expected the folder of the run");
  require(!data.train.empty(), "data.train is empty: expected a path, a glob or `synthetic`");
  const bool synthetic = data.train == "synthetic";
  require(!synthetic || model.vocab_size > 0, "data.train: synthetic needs model.vocab_size above 0");
  require(data.val.empty() || synthetic == (data.val == "synthetic"),
          "data.train and data.val: synthetic data goes with synthetic data, got ", data.train, " and ", data.val);
  require(model.vocab_size == 0 || data.ignore_token < model.vocab_size, "data.ignore_token ", data.ignore_token,
          " is not a token id below model.vocab_size ", model.vocab_size);
}

}  // namespace greyhound
