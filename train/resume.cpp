#include <greyhound/train/resume.h>

#include <greyhound/train/agreement.h>
#include <greyhound/train/config_schema.h>
#include <greyhound/train/content_hash.h>
#include <greyhound/train/number_text.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace greyhound {

namespace {

std::string to_json_text(const ConfigValue& value) {
  const auto dump = [](const auto& content) {
    return nlohmann::json(content).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  return std::visit(dump, value);
}

// "is 4, was 2".
std::string change(const std::string& name, const std::string& now, const std::string& before) {
  return concat(name, " is ", now, ", was ", before);
}

std::vector<std::string> config_changes(const CheckpointInfo& before, const CheckpointInfo& now) {
  const std::map<std::string, std::string> stored(before.config.begin(), before.config.end());
  std::vector<std::string> changes;
  std::size_t i = 0;
  for (const ConfigKey& key : config_schema()) {
    const std::string& value = now.config[i++].second;
    if (key.free_on_resume) continue;
    const auto found = stored.find(key.name());
    // A key that is newer than the checkpoint had its default.
    const std::string was = found == stored.end() ? to_json_text(key.default_value) : found->second;
    if (value != was) changes.push_back(change(key.name(), value, was));
  }
  return changes;
}

std::vector<std::string> data_changes(const CheckpointInfo& before, const CheckpointInfo& now) {
  if (before.data.size() != now.data.size()) {
    return {change("the number of data files", std::to_string(now.data.size()), std::to_string(before.data.size()))};
  }
  std::vector<std::string> changes;
  for (std::size_t i = 0; i < now.data.size(); ++i) {
    const DataFile &file = now.data[i], &was = before.data[i];
    if (file.bytes != was.bytes) {
      changes.push_back(change(file.path, counted(file.bytes, "byte"), counted(was.bytes, "byte")));
    } else if (file.hash != was.hash) {
      changes.push_back(concat(file.path, " has other contents"));
    }
  }
  return changes;
}

// What a state says twice it says the same way: files that somebody edited would otherwise train something that nobody
// can name.
void check_counters(const CheckpointInfo& info, const std::string& folder) {
  const auto counter = [&](const char* name) {
    const auto found = info.values.find(name);
    const auto* value = found == info.values.end() ? nullptr : std::get_if<std::int64_t>(&found->second);
    if (value == nullptr) throw_runtime(folder, "/state.json: has no integer ", name);
    return *value;
  };
  for (const char* name : {"trainer.steps", "loader.step"}) {
    if (counter(name) != info.step) {
      throw_runtime(folder, "/state.json: ", name, " is ", counter(name), ", but step is ", info.step);
    }
  }
  for (const char* name : {"trainer.skipped_steps", "trainer.skipped_in_a_row"}) {
    if (counter(name) < 0 || counter(name) > info.step) {
      throw_runtime(folder, "/state.json: ", name, " is ", counter(name), ", of ", info.step, " steps");
    }
  }
}

// The root rank's values replace those of the others.
class Broadcast final : public StateVisitor {
 public:
  Broadcast(const Context& context, Communicator& communicator) : context_(context), communicator_(communicator) {}

  void tensor(const std::string&, const Tensor& value) override { communicator_.broadcast(context_, value); }
  void integer(const std::string&, std::int64_t& value) override { send(&value, DType::int64, 1); }
  void real(const std::string&, double& value) override { send(&value, DType::fp64, 1); }
  void text(const std::string&, std::string& value) override {
    auto size = static_cast<std::int64_t>(value.size());
    send(&size, DType::int64, 1);
    value.resize(static_cast<std::size_t>(size));
    if (size > 0) send(value.data(), DType::uint8, size);
  }

 private:
  void send(void* data, DType dtype, std::int64_t count) {
    communicator_.broadcast(Context::cpu(), Tensor(data, dtype, {count}));
  }

  const Context& context_;
  Communicator& communicator_;
};

}  // namespace

CheckpointInfo describe_run(const Config& config, const BatchPlan& batch, const Tokenizer& tokenizer,
                            std::vector<DataFile> data) {
  CheckpointInfo info;
  info.tokenizer = content_hash(tokenizer.to_json());
  info.batch_tokens = batch.tokens();
  info.ranks = batch.ranks;
  for (const ConfigKey& key : config_schema()) info.config.emplace_back(key.name(), to_json_text(key.get(config)));
  info.data = std::move(data);
  return info;
}

void require_same_run(const Checkpoint& checkpoint, const CheckpointInfo& now, const RunDir& run_dir) {
  const CheckpointInfo& before = checkpoint.info();
  check_counters(before, checkpoint.folder());
  std::vector<std::string> changes = config_changes(before, now);
  if (now.batch_tokens != before.batch_tokens) {
    const std::string ranks =
        now.ranks == before.ranks
            ? ""
            : " (" + change("the number of ranks", std::to_string(now.ranks), std::to_string(before.ranks)) + ")";
    changes.push_back(concat(
        change("the number of tokens of a step", std::to_string(now.batch_tokens), std::to_string(before.batch_tokens)),
        ranks, ", which train.batch_tokens=", before.batch_tokens, " keeps"));
  }
  for (std::string& text : data_changes(before, now)) changes.push_back(std::move(text));
  if (now.tokenizer != before.tokenizer) changes.push_back("the tokenizer is another one");
  if (changes.empty()) return;
  std::string list;
  for (const std::string& text : changes) list += (list.empty() ? "" : "; ") + text;
  throw_usage("--resume: this is not the run in ", run_dir.path(), ": ", list,
              ". For a new run from its weights: model.init_from=", run_dir.path(), " and another run.dir");
}

void complete_from_run(Config& config, const std::set<std::string>& given, const RunDir& run_dir) {
  const Config stored = load_config(run_dir.config());
  for (const ConfigKey& key : config_schema()) {
    const bool settled = key.section == "model" || key.name() == "data.tokenizer";
    if (settled && given.count(key.name()) == 0) key.set(config, key.get(stored));
  }
}

void restore_state(const Checkpoint* checkpoint, const Context& context, Communicator& communicator,
                   const ParameterList& parameters, Stateful& state) {
  run_together(communicator, [&] {
    if (checkpoint != nullptr) checkpoint->restore(context, parameters, state);
  });
  if (communicator.size() == 1) return;
  Broadcast broadcast(context, communicator);
  state.visit_state(broadcast);
}

std::int64_t broadcast(std::int64_t value, Communicator& communicator) {
  if (communicator.size() > 1) communicator.broadcast(Context::cpu(), Tensor(&value, DType::int64, {1}));
  return value;
}

}  // namespace greyhound
