#include <greyhound/core/error.h>
#include <greyhound/core/version.h>
#include <greyhound/train/checkpoint.h>
#include <greyhound/train/json_error.h>
#include <greyhound/train/one_line.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace greyhound {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t format_version = 1;
constexpr std::int64_t most_count = std::int64_t{1} << 62;

// JSON has no infinities and no NaN: these stand as {"real": "inf"}.
Json to_json(const StateValue& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return *integer;
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  const double real = std::get<double>(value);
  if (std::isfinite(real)) return real;
  return {{"real", std::isnan(real) ? "nan" : real > 0 ? "inf" : "-inf"}};
}

// Reads one file; every message begins with its name.
class Reader {
 public:
  explicit Reader(const std::string& name) : name_(name) {}

  Json parse(const std::string& text) const {
    try {
      Json json = Json::parse(text);
      if (!json.is_object()) fail("expected an object");
      return json;
    } catch (const Json::exception& error) {
      fail("is not JSON: ", json_error_text(error.what()));
    }
  }

  const Json& member(const Json& object, const char* key) const {
    const auto found = object.find(key);
    if (found == object.end()) fail("has no ", key);
    return *found;
  }

  std::int64_t count(const Json& object, const char* key) const {
    const Json& value = member(object, key);
    if (!value.is_number_unsigned() || value > most_count)
      fail(key, ": expected a whole number, found ", json_shown(value));
    return value.get<std::int64_t>();
  }

  std::string text(const Json& object, const char* key) const {
    const Json& value = member(object, key);
    if (!value.is_string()) fail(key, ": expected text, found ", json_shown(value));
    return value.get<std::string>();
  }

  const Json& list(const Json& object, const char* key) const {
    const Json& value = member(object, key);
    if (!value.is_array()) fail(key, ": expected a list, found ", json_shown(value));
    return value;
  }

  const Json& object(const Json& object, const char* key) const {
    const Json& value = member(object, key);
    if (!value.is_object()) fail(key, ": expected an object, found ", json_shown(value));
    return value;
  }

  StateValue state_value(const std::string& name, const Json& value) const {
    if (value.is_number_float()) return value.get<double>();
    if (value.is_string()) return value.get<std::string>();
    if (value.is_number_integer() && value >= -most_count && value <= most_count) return value.get<std::int64_t>();
    if (value.is_object() && value.size() == 1 && value.contains("real")) {
      const Json& real = value["real"];
      if (real == "nan") return std::numeric_limits<double>::quiet_NaN();
      if (real == "inf") return std::numeric_limits<double>::infinity();
      if (real == "-inf") return -std::numeric_limits<double>::infinity();
    }
    fail("values: ", one_line(name), ": expected an integer, a real or a text, found ", json_shown(value));
  }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw_runtime(name_, ": ", parts...);
  }

 private:
  std::string name_;
};

}  // namespace

std::string to_json(const CheckpointInfo& info) {
  Json json;
  json["format"] = format_version;
  json["greyhound_version"] = GREYHOUND_VERSION;
  json["step"] = info.step;
  json["tokens"] = info.tokens;
  json["batch_tokens"] = info.batch_tokens;
  json["ranks"] = info.ranks;
  Json values = Json::object();
  for (const auto& [name, value] : info.values) values[name] = to_json(value);
  json["values"] = values;
  Json data = Json::array();
  for (const DataFile& file : info.data) {
    data.push_back({{"path", file.path}, {"bytes", file.bytes}, {"hash", file.hash}});
  }
  json["data"] = data;
  json["tokenizer"] = info.tokenizer;
  Json config = Json::object();
  for (const auto& [key, value] : info.config) config[key] = Json::parse(value);
  json["config"] = config;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

CheckpointInfo parse_checkpoint_info(const std::string& text, const std::string& name) {
  const Reader reader(name);
  const Json json = reader.parse(text);
  const std::int64_t format = reader.count(json, "format");
  if (format != format_version) {
    reader.fail("has format ", format, ", which this version of greyhound (", GREYHOUND_VERSION, ") does not read");
  }
  CheckpointInfo info;
  info.step = reader.count(json, "step");
  info.tokens = reader.count(json, "tokens");
  info.batch_tokens = reader.count(json, "batch_tokens");
  info.ranks = reader.count(json, "ranks");
  for (const auto& [key, value] : reader.object(json, "values").items()) {
    info.values[key] = reader.state_value(key, value);
  }
  for (const Json& file : reader.list(json, "data")) {
    if (!file.is_object()) reader.fail("data: expected objects");
    info.data.push_back({reader.text(file, "path"), reader.count(file, "bytes"), reader.text(file, "hash")});
  }
  info.tokenizer = reader.text(json, "tokenizer");
  for (const auto& [key, value] : reader.object(json, "config").items()) {
    if (!value.is_primitive() || value.is_null()) reader.fail("config: ", one_line(key), ": expected a value");
    info.config.emplace_back(key, value.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return info;
}

}  // namespace greyhound
