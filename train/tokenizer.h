// Text to token ids and back: bytes, the symbols of a text, byte-level BPE, or bare ids.
#pragma once

#include <greyhound/train/bpe_encoder.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace greyhound {

enum class TokenizerKind {
  byte,       // 256 tokens, the bytes of UTF-8
  character,  // one token per Unicode code point of the training text, in ascending order
  bpe,        // byte-level BPE, as GPT-2's
  ids,        // token files and synthetic data, whose text is unknown here: numbers separated by spaces
};

class Tokenizer {
 public:
  Tokenizer() = default;  // byte
  static Tokenizer bytes();
  // `symbols` ascending without duplicates; token i is symbols[i].
  static Tokenizer characters(std::vector<char32_t> symbols);
  static Tokenizer bpe(std::shared_ptr<const BpeVocabulary> vocabulary);
  static Tokenizer ids(std::int64_t vocab_size);

  // tokenizer.json of a run's folder. Of BPE it is what Hugging Face's tokenizers read and write, of the others
  // {"kind": "char", "vocab_size": 65, "symbols": "\n !..."}. Both throw an Error that names the file.
  static Tokenizer load(const std::string& path);
  void save(const std::string& path) const;
  std::string to_json() const;  // what save() writes

  TokenizerKind kind() const { return kind_; }
  std::int64_t vocab_size() const { return vocab_size_; }
  const std::vector<char32_t>& symbols() const { return symbols_; }
  // Of BPE; nullptr for the others.
  const std::shared_ptr<const BpeVocabulary>& vocabulary() const { return vocabulary_; }
  const std::shared_ptr<const BpeMerges>& merges() const { return merges_; }
  // What stands between documents, and a text starts from: <|endoftext|> of BPE and of GPT-2's ids; -1 where there is
  // none.
  std::int32_t end_of_text() const;

  // Any bytes with byte and BPE, which never makes special tokens of text. Throws a usage Error with the position: a
  // symbol that the vocabulary lacks, invalid UTF-8 (character), or something that is not a token id (ids).
  std::vector<std::int32_t> encode(std::string_view text) const;
  // The token's own bytes, which may be part of a UTF-8 sequence. Ids of the model that stand for nothing are U+FFFD.
  std::string piece(std::int32_t token) const;
  std::string decode(std::span<const std::int32_t> tokens) const;

  // The token of a code point, -1 when there is none (character).
  std::int32_t token_of(char32_t symbol) const;

 private:
  TokenizerKind kind_ = TokenizerKind::byte;
  std::int64_t vocab_size_ = 256;
  std::vector<char32_t> symbols_;
  std::shared_ptr<const BpeVocabulary> vocabulary_;
  std::shared_ptr<const BpeMerges> merges_;
};

// Decodes token by token for a terminal: characters come out whole, as soon as their last byte is there. Bytes that are
// not UTF-8, and control characters other than tab and line ends (a young model draws escape sequences as well), become
// U+FFFD.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::string push(std::int32_t token);
  std::string finish();  // what was held back

 private:
  std::string take_complete(bool at_end);

  const Tokenizer& tokenizer_;
  std::string pending_;
};

}  // namespace greyhound
