#include <greyhound/core/error.h>
#include <greyhound/train/bpe_vocabulary.h>
#include <greyhound/train/input_file.h>
#include <greyhound/train/utf8.h>
#include <spdlog/spdlog.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <unordered_map>

namespace greyhound {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* end_of_text_name = "<|endoftext|>";

// Bytes that print stand for themselves; the other 68 are U+0100 and on, in their order.
struct ByteAlphabet {
  std::array<char32_t, 256> symbol_of{};
  std::array<int, 0x144> byte_of{};

  ByteAlphabet() {
    byte_of.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool prints = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
      const char32_t symbol = prints ? static_cast<char32_t>(byte) : next++;
      symbol_of[static_cast<std::size_t>(byte)] = symbol;
      byte_of[symbol] = byte;
    }
  }
};
const ByteAlphabet byte_alphabet;

// The bytes that `text` writes in the printable alphabet; nothing when a character of it is not of the alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size();) {
    const CodePoint symbol = read_utf8(text.substr(i));
    if (symbol.bytes == 0 || symbol.value >= byte_alphabet.byte_of.size()) return std::nullopt;
    const int byte = byte_alphabet.byte_of[symbol.value];
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    i += static_cast<std::size_t>(symbol.bytes);
  }
  return bytes;
}

Json parse_json(std::string_view text, const std::string& name) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    throw_runtime(name, ": expected JSON: ", error.what());
  }
}

// A part of a message: what a file holds can be long, and must stay on one line.
std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}
std::string quoted(std::string_view text) { return shown(Json(std::string(text))); }

}  // namespace

std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) append_utf8(text, byte_alphabet.symbol_of[static_cast<unsigned char>(byte)]);
  return text;
}

// Checks while it collects, so that every BpeVocabulary is a whole one.
class BpeVocabularyBuilder {
 public:
  BpeVocabularyBuilder(const std::string& name, const Json& vocab) : name_(name) {
    if (!vocab.is_object()) throw_runtime(name, ": expected an object of tokens and their ids, found ", shown(vocab));
    for (const auto& [text, id] : vocab.items()) add(text, id);
  }

  void add_special(const std::string& text, const Json& id) {
    const auto found = ids_.find(text);
    if (found == ids_.end()) {
      add(text, id);
    } else if (!id.is_number_integer() || id != found->second) {
      throw_runtime(name_, ": special token ", quoted(text), " has the ids ", found->second, " and ", shown(id));
    }
    special_.push_back(ids_.at(text));
  }

  void add_merge(std::string_view left, std::string_view right, const std::string& where) {
    const auto id = [&](const std::string& token) {
      const auto found = ids_.find(token);
      if (found == ids_.end()) throw_runtime(where, ": the token ", quoted(token), " is not in the vocabulary");
      return found->second;
    };
    const std::string first(left), second(right);
    merges_.push_back({id(first), id(second), id(first + second)});
  }

  BpeVocabulary build() {
    BpeVocabulary vocabulary;
    // Ids without gaps bound every table by the size of the file.
    vocabulary.tokens_.resize(ids_.size());
    std::vector<bool> taken(ids_.size());
    std::sort(special_.begin(), special_.end());
    special_.erase(std::unique(special_.begin(), special_.end()), special_.end());
    for (const auto& [text, id] : ids_) {
      const auto index = static_cast<std::size_t>(id);
      if (index >= taken.size()) {
        throw_runtime(name_, ": the token ", quoted(text), " has id ", id, ": expected the ids 0 to ", taken.size() - 1,
                      " of ", taken.size(), " tokens");
      }
      if (taken[index]) throw_runtime(name_, ": two tokens have the id ", id, ", one of them ", quoted(text));
      taken[index] = true;
      const bool special = std::binary_search(special_.begin(), special_.end(), id);
      const std::optional<std::string> bytes = special ? text : from_byte_alphabet(text);
      if (!bytes || bytes->empty()) {
        throw_runtime(name_, ": the token ", quoted(text), " is not written in the alphabet of byte-level BPE");
      }
      vocabulary.tokens_[index] = *bytes;
    }
    for (int byte = 0; byte < 256; ++byte) {
      const auto found = ids_.find(to_byte_alphabet(std::string(1, static_cast<char>(byte))));
      if (found == ids_.end()) throw_runtime(name_, ": no token stands for the byte ", byte);
      vocabulary.byte_tokens_[static_cast<std::size_t>(byte)] = found->second;
    }
    const auto end = ids_.find(end_of_text_name);
    if (end != ids_.end()) vocabulary.end_of_text_ = end->second;
    if (end == ids_.end() && special_.size() == 1) vocabulary.end_of_text_ = special_.front();
    vocabulary.merges_ = std::move(merges_);
    vocabulary.special_ = std::move(special_);
    check_merges(vocabulary);
    return vocabulary;
  }

  bool has(const std::string& text) const { return ids_.count(text) > 0; }

 private:
  // A list of merges that was cut short makes other tokens of every text, and nothing else would tell. Of GPT-2's
  // tokens all but the bytes and <|endoftext|> are made by a merge; other files have some like <pad> besides.
  void check_merges(BpeVocabulary& vocabulary) const {
    std::vector<bool> made(vocabulary.tokens_.size());
    for (const BpeMerge& merge : vocabulary.merges_) made[static_cast<std::size_t>(merge.merged)] = true;
    for (const std::int32_t id : vocabulary.special_) made[static_cast<std::size_t>(id)] = true;
    std::size_t missing = 0, example = 0;
    for (std::size_t id = 0; id < made.size(); ++id) {
      const std::string& token = vocabulary.tokens_[id];
      const bool named = (token.front() == '<' && token.back() == '>') || (token.front() == '[' && token.back() == ']');
      if (made[id] || token.size() == 1 || named) continue;
      if (missing++ == 0) example = id;
    }
    if (missing == 0) return;
    const std::string message =
        concat(name_, ": ", missing, missing == 1 ? " token" : " tokens", " of the vocabulary, such as ",
               quoted(to_byte_alphabet(vocabulary.tokens_[example])), missing == 1 ? ", is" : ", are",
               " made by no merge; is the list of merges complete?");
    if (missing * 100 > vocabulary.merges_.size()) throw_runtime(message);
    vocabulary.warning_ = message;
  }

  void add(const std::string& text, const Json& id) {
    if (!id.is_number_integer() || id < 0 || id > 0x7FFFFFFF) {
      throw_runtime(name_, ": the token ", quoted(text), " has id ", shown(id), ": expected a number from 0");
    }
    if (text.empty()) throw_runtime(name_, ": the token with id ", shown(id), " is empty");
    ids_.emplace(text, id.get<std::int32_t>());
  }

  std::string name_;
  std::unordered_map<std::string, std::int32_t> ids_;  // under the names that the file writes
  std::vector<BpeMerge> merges_;
  std::vector<std::int32_t> special_;
};

namespace {

// Splits "left right".
void add_merge_line(BpeVocabularyBuilder& builder, std::string_view line, const std::string& where) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string_view::npos) {
    throw_runtime(where, ": expected two tokens separated by a space, found ", quoted(line));
  }
  builder.add_merge(line.substr(0, space), line.substr(space + 1), where);
}

const Json& member(const Json& object, const char* key) {
  static const Json null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

bool is_empty(const Json& value) { return value.is_null() || value == "" || value == false; }

// Refuses what would make other ids than GPT-2's algorithm.
void check_pipeline(const Json& json, const Json& model, const std::string& name) {
  const auto expect = [&](bool good, const char* key, const Json& found, const char* expected) {
    if (!good) throw_runtime(name, ": ", key, " is ", shown(found), ": expected ", expected);
  };
  const auto type = [](const Json& value) { return value.is_object() ? member(value, "type") : value; };
  expect(type(model) == "BPE", "model.type", type(model), "\"BPE\"");
  expect(json.contains("normalizer") == false || json["normalizer"].is_null(), "normalizer",
         type(member(json, "normalizer")), "null, as in GPT-2");
  const Json& splitter = member(json, "pre_tokenizer");
  expect(type(splitter) == "ByteLevel", "pre_tokenizer", type(splitter), "\"ByteLevel\", as in GPT-2");
  expect(member(splitter, "add_prefix_space") == false, "pre_tokenizer.add_prefix_space",
         member(splitter, "add_prefix_space"), "false, as in GPT-2");
  const Json& use_regex = member(splitter, "use_regex");
  expect(use_regex.is_null() || use_regex == true, "pre_tokenizer.use_regex", use_regex, "true, as in GPT-2");
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"}) {
    expect(is_empty(member(model, key)), concat("model.", key).c_str(), member(model, key), "none, as in GPT-2");
  }
}

}  // namespace

BpeVocabulary BpeVocabulary::parse_tokenizer_json(std::string_view text, const std::string& name) {
  const Json json = parse_json(text, name);
  if (!json.is_object() || !member(json, "model").is_object()) {
    throw_runtime(name, ": expected a tokenizer.json of Hugging Face, with a model");
  }
  const Json& model = json["model"];
  check_pipeline(json, model, name);

  BpeVocabularyBuilder builder(name + ": model.vocab", member(model, "vocab"));
  const Json& added = member(json, "added_tokens");
  if (!added.is_null() && !added.is_array())
    throw_runtime(name, ": added_tokens: expected a list, found ", shown(added));
  for (const Json& token : added) {
    const Json& content = token.is_object() ? member(token, "content") : token;
    if (!token.is_object() || !content.is_string()) throw_runtime(name, ": added_tokens: found ", shown(token));
    if (member(token, "special") != true) {
      throw_runtime(name, ": added_tokens: ", shown(content), " is not special: only special tokens may be added");
    }
    builder.add_special(content, member(token, "id"));
  }
  const Json& merges = member(model, "merges");
  if (!merges.is_array()) throw_runtime(name, ": model.merges: expected a list, found ", shown(merges));
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const std::string where = concat(name, ": model.merges[", i, "]");
    const Json& merge = merges[i];
    if (merge.is_string()) {
      add_merge_line(builder, merge.get_ref<const std::string&>(), where);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      builder.add_merge(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>(), where);
    } else {
      throw_runtime(where, ": expected two tokens, found ", shown(merge));
    }
  }
  return builder.build();
}

BpeVocabulary BpeVocabulary::parse_vocab_and_merges(std::string_view vocab_json, const std::string& vocab_name,
                                                    std::string_view merges_txt, const std::string& merges_name) {
  const Json vocab = parse_json(vocab_json, vocab_name);
  BpeVocabularyBuilder builder(vocab_name, vocab);
  if (builder.has(end_of_text_name)) builder.add_special(end_of_text_name, vocab[end_of_text_name]);
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < merges_txt.size();) {
    const std::size_t end = std::min(merges_txt.find('\n', begin), merges_txt.size());
    std::string_view line = merges_txt.substr(begin, end - begin);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    begin = end + 1;
    ++number;
    // "# #" is a merge of GPT-2's: only the version is a comment.
    if (line.empty() || line.substr(0, 8) == "#version") continue;
    add_merge_line(builder, line, concat(merges_name, ": line ", number));
  }
  return builder.build();
}

std::shared_ptr<const BpeVocabulary> BpeVocabulary::load(const std::string& path) {
  const auto share = [](BpeVocabulary&& made) {
    if (!made.warning_.empty()) spdlog::warn(made.warning_);
    return std::make_shared<const BpeVocabulary>(std::move(made));
  };
  std::error_code ignored;
  const bool folder = fs::is_directory(path, ignored);
  const auto in_folder = [&](const char* name) { return (fs::path(path) / name).string(); };
  const std::string json = folder ? in_folder("tokenizer.json") : path;
  const auto contents = [](const std::string& file) { return read_small_file(file, most_file_bytes); };
  if (fs::exists(json, ignored)) return share(parse_tokenizer_json(contents(json), json));
  const char* const names[][2] = {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}};
  for (const auto& [vocab, merges] : names) {
    if (!folder || !fs::exists(in_folder(vocab), ignored)) continue;
    const std::string vocab_path = in_folder(vocab), merges_path = in_folder(merges);
    return share(parse_vocab_and_merges(contents(vocab_path), vocab_path, contents(merges_path), merges_path));
  }
  throw_usage("tokenizer ", path, folder ? ": the folder holds neither" : ": there is no such file or folder: expected",
              folder ? " tokenizer.json nor vocab.json with merges.txt"
                     : " a tokenizer.json, or a folder with vocab.json and merges.txt");
}

std::string BpeVocabulary::to_tokenizer_json() const {
  using Ordered = nlohmann::ordered_json;
  const auto is_special = [&](std::int32_t id) { return std::binary_search(special_.begin(), special_.end(), id); };
  const auto written = [&](std::int32_t id) { return is_special(id) ? token(id) : to_byte_alphabet(token(id)); };
  Ordered json;
  json["version"] = "1.0";
  json["truncation"] = json["padding"] = nullptr;
  json["added_tokens"] = Ordered::array();
  for (const std::int32_t id : special_) {
    json["added_tokens"].push_back({{"id", id},
                                    {"content", token(id)},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}});
  }
  const Ordered byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = byte_level;
  json["post_processor"] = nullptr;
  json["decoder"] = byte_level;
  Ordered& model = json["model"];
  model["type"] = "BPE";
  model["dropout"] = model["unk_token"] = nullptr;
  model["continuing_subword_prefix"] = model["end_of_word_suffix"] = nullptr;
  model["fuse_unk"] = model["byte_fallback"] = model["ignore_merges"] = false;
  Ordered vocab = Ordered::object();
  // ordered_json looks for a key before it adds one, which is quadratic: fill the list beneath it.
  auto& items = vocab.get_ref<Ordered::object_t&>();
  items.reserve(tokens_.size());
  for (std::int32_t id = 0; id < size(); ++id) items.Container::emplace_back(written(id), id);
  model["vocab"] = std::move(vocab);
  model["merges"] = Ordered::array();
  for (const BpeMerge& merge : merges_) model["merges"].push_back(written(merge.left) + " " + written(merge.right));
  return json.dump() + "\n";
}

}  // namespace greyhound
