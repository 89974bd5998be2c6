// The vocabulary of a byte-level BPE tokenizer, as GPT-2's, and the files that hold one.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace greyhound {

struct BpeMerge {
  std::int32_t left, right, merged;  // ids
};

// What BPE files say: tokens, merges in the order of their ranks, special tokens. See bpe_encoder.h for what it means.
class BpeVocabulary {
 public:
  // `path`: a tokenizer.json of Hugging Face, or a folder that holds one, or vocab.json and merges.txt (encoder.json
  // and vocab.bpe, as OpenAI calls them). Throws a usage Error when there is none, and a runtime Error of one line with
  // the file for what is malformed, or for a tokenizer.json that is something else than byte-level BPE with GPT-2's
  // pattern, and for merges that make less than 99 of 100 tokens; warns of fewer that no merge makes.
  static constexpr std::uint64_t most_file_bytes = 256 << 20;
  static std::shared_ptr<const BpeVocabulary> load(const std::string& path);

  // From the contents of the files; the names stand for the files in messages.
  static BpeVocabulary parse_tokenizer_json(std::string_view json, const std::string& name);
  static BpeVocabulary parse_vocab_and_merges(std::string_view vocab_json, const std::string& vocab_name,
                                              std::string_view merges_txt, const std::string& merges_name);

  // A tokenizer.json that Hugging Face's tokenizers and load() read.
  std::string to_tokenizer_json() const;

  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }
  // The bytes of a token; special tokens as they are written.
  const std::string& token(std::int32_t id) const { return tokens_[static_cast<std::size_t>(id)]; }
  const std::vector<BpeMerge>& merges() const { return merges_; }
  std::int32_t byte_token(unsigned char byte) const { return byte_tokens_[byte]; }

  // Special tokens, ascending. Text never turns into them unless it is asked to.
  const std::vector<std::int32_t>& special_tokens() const { return special_; }
  // <|endoftext|>, or the only special token; -1 when there is neither.
  std::int32_t end_of_text() const { return end_of_text_; }

 private:
  friend class BpeVocabularyBuilder;
  std::vector<std::string> tokens_;
  std::vector<BpeMerge> merges_;
  std::vector<std::int32_t> special_;
  std::array<std::int32_t, 256> byte_tokens_{};
  std::int32_t end_of_text_ = -1;
  std::string warning_;
};

// GPT-2's printable alphabet, in which BPE files write bytes: 'A' for itself, U+0120 for a space.
std::string to_byte_alphabet(std::string_view bytes);

}  // namespace greyhound
