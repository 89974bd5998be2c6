// Which tokens a row of a batch holds: pure index arithmetic, in 64 bits throughout.
#pragma once

#include <greyhound/core/rng.h>

#include <cstdint>
#include <vector>

namespace greyhound {

// Text: an epoch is a random order of windows that do not overlap, [offset + w * T, offset + w * T + T], w < count. The
// offset is drawn for each epoch from [0, max_offset], so that over epochs every alignment is seen; where there is more
// than one window, one is given up for that.
struct TextWindows {
  std::int64_t count = 0;
  std::int64_t max_offset = 0;
};
inline TextWindows text_windows(std::int64_t tokens, std::int64_t block_size) {
  const std::int64_t whole =
      tokens <= 0 ? 0 : (tokens - 1) / block_size;  // a window's last target is its T + 1st token
  const std::int64_t count = whole > 1 ? whole - 1 : whole;
  return {count, count == 0 ? 0 : tokens - 1 - count * block_size};
}

// Token shards, the rule of llm.c: batches of a shard follow each other by S = ranks * B * T tokens, and each takes one
// more token than that for its last target.
inline std::int64_t shard_batches(std::int64_t tokens, std::int64_t batch_tokens) {
  return tokens <= 0 ? 0 : (tokens - 1) / batch_tokens;
}
// The first token of row `row` (over all ranks) of a shard's batch.
inline std::int64_t shard_row_start(std::int64_t batch, std::int64_t batch_tokens, std::int64_t row,
                                    std::int64_t block_size) {
  return batch * batch_tokens + row * block_size;
}

// Items numbered through several parts (batches through shards, windows through texts).
class PartIndex {
 public:
  struct Place {
    std::size_t part;
    std::int64_t item;  // within the part
  };
  void add(std::int64_t items) { ends_.push_back(total() + items); }
  std::int64_t total() const { return ends_.empty() ? 0 : ends_.back(); }
  Place operator[](std::int64_t item) const;  // 0 <= item < total(); parts without items are passed over

 private:
  std::vector<std::int64_t> ends_;
};

// A pseudo-random permutation of 0 .. size-1 that takes no memory: a Feistel network on the next even number of bits,
// walked until it lands below size (J. Black, P. Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).
class Permutation {
 public:
  Permutation(std::int64_t size, std::uint64_t key);
  std::int64_t operator[](std::int64_t index) const;  // 0 <= index < size

 private:
  std::uint64_t size_, key_;
  int half_bits_ = 1;
};

}  // namespace greyhound
