#include <greyhound/core/error.h>
#include <greyhound/train/file_io.h>
#include <greyhound/train/input_file.h>
#include <greyhound/train/json_error.h>
#include <greyhound/train/one_line.h>
#include <greyhound/train/tokenizer.h>
#include <greyhound/train/utf8.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace greyhound {
namespace {

constexpr const char* kind_names[] = {"byte", "char", "bpe", "ids"};
constexpr std::int32_t gpt2_end_of_text = 50256;  // the last of GPT-2's ids

std::string describe(char32_t symbol) {
  char text[16];
  std::snprintf(text, sizeof text, "U+%04X", static_cast<unsigned>(symbol));
  std::string name = text;
  if (symbol > 0x20 && symbol != 0x7F) {
    name += " '";
    append_utf8(name, symbol);
    name += "'";
  }
  return name;
}

std::vector<std::int32_t> encode_characters(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> tokens;
  for (std::size_t position = 0; position < text.size();) {
    const CodePoint symbol = read_utf8(text.substr(position));
    require(symbol.bytes > 0, "byte ", position, " of the text is not UTF-8");
    const std::int32_t token = tokenizer.token_of(symbol.value);
    require(token >= 0, "character ", describe(symbol.value), " at byte ", position, " of the text is not among the ",
            tokenizer.vocab_size(), " characters that the model knows");
    tokens.push_back(token);
    position += static_cast<std::size_t>(symbol.bytes);
  }
  return tokens;
}

std::vector<std::int32_t> encode_ids(std::int64_t vocab_size, std::string_view text) {
  std::vector<std::int32_t> tokens;
  constexpr const char* spaces = " \t\r\n,";
  for (std::size_t begin = text.find_first_not_of(spaces); begin != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(spaces, begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    std::int64_t id = -1;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    require(error == std::errc() && rest == word.data() + word.size() && id >= 0 && id < vocab_size,
            "the model was trained on token ids: expected numbers below ", vocab_size, " separated by spaces, got ",
            one_line(std::string(word)), " at byte ", begin);
    tokens.push_back(static_cast<std::int32_t>(id));
    begin = text.find_first_not_of(spaces, end);
  }
  return tokens;
}

// Told from what greyhound writes for the other kinds by the key that those begin with.
bool is_hugging_face(std::string_view text) {
  const std::size_t key = text.find('"');
  return key != std::string_view::npos && text.substr(key, 6) != "\"kind\"" && text.find("\"model\"") != text.npos;
}

// Characters that do something to a terminal rather than show.
bool is_control(char32_t symbol) {
  const bool harmless = symbol == '\t' || symbol == '\n' || symbol == '\r';
  return !harmless && (symbol < 0x20 || (symbol >= 0x7F && symbol < 0xA0));
}

}  // namespace

Tokenizer Tokenizer::bytes() { return {}; }

Tokenizer Tokenizer::characters(std::vector<char32_t> symbols) {
  for (std::size_t i = 1; i < symbols.size(); ++i) {
    require(symbols[i - 1] < symbols[i], "tokenizer: symbols must ascend, ", describe(symbols[i]), " comes after ",
            describe(symbols[i - 1]));
  }
  Tokenizer tokenizer;
  tokenizer.kind_ = TokenizerKind::character;
  tokenizer.vocab_size_ = static_cast<std::int64_t>(symbols.size());
  tokenizer.symbols_ = std::move(symbols);
  return tokenizer;
}

Tokenizer Tokenizer::ids(std::int64_t vocab_size) {
  Tokenizer tokenizer;
  tokenizer.kind_ = TokenizerKind::ids;
  tokenizer.vocab_size_ = vocab_size;
  return tokenizer;
}

Tokenizer Tokenizer::bpe(std::shared_ptr<const BpeVocabulary> vocabulary) {
  Tokenizer tokenizer;
  tokenizer.kind_ = TokenizerKind::bpe;
  tokenizer.vocab_size_ = vocabulary->size();
  tokenizer.merges_ = std::make_shared<const BpeMerges>(*vocabulary);
  tokenizer.vocabulary_ = std::move(vocabulary);
  return tokenizer;
}

Tokenizer Tokenizer::load(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) throw_runtime("cannot open the tokenizer ", path);
  const std::string contents = read_small_file(path, BpeVocabulary::most_file_bytes);
  if (is_hugging_face(contents)) return bpe(BpeVocabulary::load(path));
  try {
    const nlohmann::json json = nlohmann::json::parse(contents);
    const std::string kind = json.at("kind");
    const std::int64_t vocab_size = json.at("vocab_size");
    Tokenizer tokenizer;
    if (kind == "char") {
      const std::string text = json.at("symbols");
      std::vector<char32_t> symbols;
      for (std::size_t i = 0; i < text.size(); i += static_cast<std::size_t>(read_utf8(text.substr(i, 4)).bytes)) {
        symbols.push_back(read_utf8(text.substr(i, 4)).value);  // JSON that parses is UTF-8
      }
      tokenizer = characters(std::move(symbols));
    } else if (kind == "ids") {
      tokenizer = ids(vocab_size);
    } else {
      require(kind == "byte", "kind ", one_line(kind), ", expected byte, char or ids");
    }
    require(vocab_size >= 1 && tokenizer.vocab_size() == vocab_size, "vocab_size ", vocab_size, " does not fit the ",
            tokenizer.vocab_size(), " tokens");
    return tokenizer;
  } catch (const std::exception& error) {
    throw_runtime(path, " is not a tokenizer that greyhound wrote: ", json_error_text(error.what()));
  }
}

void Tokenizer::save(const std::string& path) const {
  if (kind_ == TokenizerKind::bpe) {
    write_atomically(path, vocabulary_->to_tokenizer_json());
    return;
  }
  nlohmann::ordered_json json;
  json["kind"] = kind_names[static_cast<int>(kind_)];
  json["vocab_size"] = vocab_size_;
  if (kind_ == TokenizerKind::character) {
    std::string text;
    for (const char32_t symbol : symbols_) append_utf8(text, symbol);
    json["symbols"] = text;
  }
  write_atomically(path, json.dump() + "\n");
}

std::int32_t Tokenizer::token_of(char32_t symbol) const {
  const auto found = std::lower_bound(symbols_.begin(), symbols_.end(), symbol);
  if (found == symbols_.end() || *found != symbol) return -1;
  return static_cast<std::int32_t>(found - symbols_.begin());
}

std::int32_t Tokenizer::end_of_text() const {
  if (kind_ == TokenizerKind::bpe) return vocabulary_->end_of_text();
  return kind_ == TokenizerKind::ids && vocab_size_ == gpt2_end_of_text + 1 ? gpt2_end_of_text : -1;
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  if (kind_ == TokenizerKind::character) return encode_characters(*this, text);
  if (kind_ == TokenizerKind::ids) return encode_ids(vocab_size_, text);
  std::vector<std::int32_t> tokens;
  if (kind_ == TokenizerKind::bpe) {
    BpeEncoder(merges_).encode(text, tokens);
    return tokens;
  }
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string Tokenizer::piece(std::int32_t token) const {
  require(token >= 0, "token ", token, " is negative");
  std::string text;
  if (token >= vocab_size_ && kind_ != TokenizerKind::ids) return "\uFFFD";  // of a model with more rows than symbols
  switch (kind_) {
    case TokenizerKind::byte: text = static_cast<char>(token); break;
    case TokenizerKind::character: append_utf8(text, symbols_[static_cast<std::size_t>(token)]); break;
    case TokenizerKind::bpe: text = vocabulary_->token(token); break;
    case TokenizerKind::ids: text = std::to_string(token) + " "; break;
  }
  return text;
}

std::string Tokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) text += piece(token);
  return text;
}

std::string StreamDecoder::push(std::int32_t token) {
  pending_ += tokenizer_.piece(token);
  return take_complete(false);
}

std::string StreamDecoder::finish() { return take_complete(true); }

std::string StreamDecoder::take_complete(bool at_end) {
  std::string complete;
  std::size_t position = 0;
  while (position < pending_.size()) {
    const CodePoint symbol = read_utf8(std::string_view(pending_).substr(position));
    if (symbol.truncated && !at_end) break;
    const bool shown = symbol.bytes > 0 && !is_control(symbol.value);
    append_utf8(complete, shown ? symbol.value : U'\uFFFD');
    position += symbol.bytes > 0 ? static_cast<std::size_t>(symbol.bytes) : 1;
  }
  pending_.erase(0, position);
  return complete;
}

}  // namespace greyhound
