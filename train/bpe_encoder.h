// Byte-level BPE: text to tokens.
#pragma once

#include <greyhound/train/bpe_vocabulary.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace greyhound {

using Poll = std::function<void()>;

// A vocabulary's merges, ready to be looked up. Immutable: threads share one.
class BpeMerges {
 public:
  explicit BpeMerges(const BpeVocabulary& vocabulary);

  struct Merge {
    std::uint32_t rank;   // none: the two do not merge
    std::int32_t merged;  // id
  };
  static constexpr std::uint32_t none = 0xFFFFFFFF;
  Merge find(std::int32_t left, std::int32_t right) const;

  // Appends the tokens of one word. The pair of the lowest rank merges first, of equal ones the leftmost. n log n in
  // the word's length; some 30 bytes of memory for each byte of a long word. `poll` is called now and then in long
  // words: what it throws ends the work.
  void encode_word(std::string_view word, std::vector<std::int32_t>& tokens, const Poll& poll = {}) const;

 private:
  void merge_short(std::int32_t* ids, std::size_t& count) const;
  void merge_long(std::vector<std::int32_t>& ids, const Poll& poll) const;

  struct Slot {
    std::uint64_t pair;
    Merge merge;
  };
  std::vector<Slot> slots_;  // open addressing, a power of two
  std::uint64_t mask_ = 0;
  std::array<std::int32_t, 256> byte_tokens_{};
};

// Encodes for one thread: remembers the words it has met, in a table of fixed size.
class BpeEncoder {
 public:
  explicit BpeEncoder(std::shared_ptr<const BpeMerges> merges, Poll poll = {});

  // Appends the tokens of `text`, any bytes. Never special tokens.
  void encode(std::string_view text, std::vector<std::int32_t>& tokens);

 private:
  // Words of up to 15 bytes and 7 tokens, one to a slot, the newest stays: a cache line each.
  struct alignas(64) Slot {
    std::uint64_t low = 0, high = 0;  // the bytes, and the length in the last
    std::int32_t count = 0;
    std::int32_t tokens[7] = {};
  };
  std::shared_ptr<const BpeMerges> merges_;
  std::vector<Slot> slots_;
  Poll poll_;
};

}  // namespace greyhound
