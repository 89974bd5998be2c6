#include <greyhound/train/checkpoint.h>

#include <greyhound/core/error.h>
#include <greyhound/core/memory.h>
#include <greyhound/train/content_hash.h>
#include <greyhound/train/file_io.h>
#include <greyhound/train/input_file.h>
#include <greyhound/train/json_error.h>
#include <greyhound/train/one_line.h>
#include <greyhound/train/weights_file.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

namespace greyhound {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* weights_name = "model.safetensors";
constexpr const char* optimizer_name = "optimizer.safetensors";
constexpr const char* state_name = "state.json";
constexpr const char* manifest_name = "manifest.json";
constexpr const char* file_names[] = {weights_name, optimizer_name, state_name};
constexpr const char* weights_in_state = "optimizer.weights";  // OptimizerState's name of them
constexpr std::uint64_t most_manifest_bytes = 64 << 10, most_state_bytes = 16 << 20;

struct Sum {
  std::uint64_t bytes = 0;
  std::string hash;
};

Sum sum_of(const std::string& path) {
  constexpr std::uint64_t part = 4 << 20;
  const InputFile file(path);
  ContentHash hash;
  for (std::uint64_t begin = 0; begin < file.size(); begin += part) {
    hash.add(file.read(begin, std::min(begin + part, file.size())));
  }
  return {file.size(), to_hexadecimal(hash.finish())};
}

bool is_block(const Tensor& tensor, const ParameterList& parameters) {
  return tensor.shape == Shape{parameters.block_elements()};
}

void check_file(const std::string& folder, const char* name, const Json& manifest) {
  const std::string path = folder + "/" + name;
  const Json& files = manifest["files"];
  const bool listed = files.is_object() && files.contains(name) && files[name].is_object() &&
                      files[name].contains("bytes") && files[name].contains("hash");
  if (!listed) throw_runtime(folder, "/", manifest_name, ": does not list ", name);
  const Sum found = sum_of(path);
  if (files[name]["bytes"] != found.bytes) {
    const Json& bytes = files[name]["bytes"];
    throw_runtime(path, ": expected ", bytes.is_number() ? bytes.dump() : "a number of", " bytes, found ", found.bytes);
  }
  if (files[name]["hash"] != found.hash) {
    throw_runtime(path, ": is damaged: its checksum is not the one in ", manifest_name);
  }
}

std::int64_t check_files(const std::string& folder) {
  const std::string path = folder + "/" + manifest_name;
  Json manifest;
  try {
    manifest = Json::parse(read_small_file(path, most_manifest_bytes));
  } catch (const Json::exception& error) {
    throw_runtime(path, ": is not JSON: ", json_error_text(error.what()));
  }
  const bool whole = manifest.is_object() && manifest.contains("format") && manifest["format"] == 1 &&
                     manifest.contains("step") && manifest["step"].is_number_unsigned() && manifest.contains("files");
  if (!whole) throw_runtime(path, ": expected format 1, a step and files");
  for (const char* name : file_names) check_file(folder, name, manifest);
  return manifest["step"].get<std::int64_t>();
}

class Restore final : public StateVisitor {
 public:
  Restore(const std::string& folder, const CheckpointInfo& info, const Context& context,
          const ParameterList& parameters)
      : state_path_(folder + "/" + state_name),
        info_(info),
        context_(context),
        parameters_(parameters),
        weights_(folder + "/" + weights_name),
        optimizer_(folder + "/" + optimizer_name) {}

  void tensor(const std::string& name, const Tensor& value) override {
    if (name == weights_in_state) {
      read_parameters(weights_, "", context_, parameters_, value);
      for (const Parameter& parameter : parameters_.all()) weights_used_.insert(parameter.name);
    } else if (is_block(value, parameters_)) {
      read_parameters(optimizer_, name + ".", context_, parameters_, value);
      for (const Parameter& parameter : parameters_.all()) optimizer_used_.insert(name + "." + parameter.name);
    } else {
      read_whole(name, value);
    }
  }
  void integer(const std::string& name, std::int64_t& value) override { value = get<std::int64_t>(name, "an integer"); }
  void real(const std::string& name, double& value) override { value = get<double>(name, "a real"); }
  void text(const std::string& name, std::string& value) override { value = get<std::string>(name, "a text"); }

  // What nobody asked for belongs to another run.
  void check_all_used() const {
    check_used(weights_, weights_used_);
    check_used(optimizer_, optimizer_used_);
    for (const auto& [name, value] : info_.values) {
      if (values_used_.count(name) == 0) throw_runtime(state_path_, ": holds ", one_line(name), ", unknown here");
    }
  }

 private:
  void read_whole(const std::string& name, const Tensor& value) {
    const ConstTensor stored = optimizer_[name];
    if (stored.dtype != value.dtype || stored.shape != value.shape) {
      throw_runtime(optimizer_.path(), ": tensor ", name, ": expected ", name_of(value.dtype), " ",
                    to_string(value.shape), ", found ", name_of(stored.dtype), " ", to_string(stored.shape));
    }
    copy(context_, value, stored);
    context_.synchronize();
    optimizer_used_.insert(name);
  }

  template <class Type>
  Type get(const std::string& name, const char* kind) {
    const auto found = info_.values.find(name);
    if (found == info_.values.end()) throw_runtime(state_path_, ": has no ", name);
    const Type* value = std::get_if<Type>(&found->second);
    if (value == nullptr) throw_runtime(state_path_, ": ", name, " is not ", kind);
    values_used_.insert(name);
    return *value;
  }

  static void check_used(const SafetensorsFile& file, const std::set<std::string>& used) {
    for (const std::string& name : file.names()) {
      if (used.count(name) == 0)
        throw_runtime(file.path(), ": holds a tensor ", name, ", which this run does not have");
    }
  }

  const std::string state_path_;
  const CheckpointInfo& info_;
  const Context& context_;
  const ParameterList& parameters_;
  const SafetensorsFile weights_, optimizer_;
  std::set<std::string> weights_used_, optimizer_used_, values_used_;
};

}  // namespace

void write_checkpoint(const std::string& folder, const CheckpointInfo& info, const ParameterList& parameters,
                      const std::map<std::string, Tensor>& tensors) {
  std::vector<NamedTensor> optimizer;
  for (const auto& [name, tensor] : tensors) {
    if (name == weights_in_state) continue;
    if (is_block(tensor, parameters)) {
      const std::vector<NamedTensor> named = name_parameters(parameters, tensor, name + ".");
      optimizer.insert(optimizer.end(), named.begin(), named.end());
    } else {
      optimizer.push_back({name, tensor});
    }
  }
  // What was meant is hashed, not what a read gives back: that costs less, and finds what went wrong on the way.
  Json files = Json::object();
  const auto list = [&](const char* name, ContentHash& hash) {
    files[name] = {{"bytes", std::filesystem::file_size(folder + "/" + name)}, {"hash", to_hexadecimal(hash.finish())}};
  };
  ContentHash weights_hash, optimizer_hash, state_hash;
  write_safetensors(folder + "/" + weights_name, name_parameters(parameters, tensors.at(weights_in_state)),
                    weights_metadata(info.step), &weights_hash);
  list(weights_name, weights_hash);
  write_safetensors(folder + "/" + optimizer_name, optimizer, {}, &optimizer_hash);
  list(optimizer_name, optimizer_hash);
  const std::string state = to_json(info);
  write_atomically(folder + "/" + state_name, state);
  state_hash.add(state);
  list(state_name, state_hash);
  const Json manifest = {{"format", 1}, {"step", info.step}, {"files", files}};
  write_atomically(folder + "/" + manifest_name, manifest.dump(2) + "\n");
}

Checkpoint::Checkpoint(const std::string& folder) : folder_(folder) {
  const std::int64_t step = check_files(folder);
  const std::string path = folder + "/" + state_name;
  info_ = parse_checkpoint_info(read_small_file(path, most_state_bytes), path);
  if (info_.step != step) throw_runtime(path, ": is of step ", info_.step, ", the manifest of step ", step);
}

void Checkpoint::restore(const Context& context, const ParameterList& parameters, Stateful& state) const {
  Restore restore(folder_, info_, context, parameters);
  state.visit_state(restore);
  restore.check_all_used();
}

}  // namespace greyhound
