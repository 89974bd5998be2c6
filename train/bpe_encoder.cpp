#include <greyhound/core/error.h>
#include <greyhound/train/bpe_encoder.h>
#include <greyhound/train/bpe_split.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <queue>
#include <tuple>

namespace greyhound {
namespace {

constexpr std::uint64_t no_pair = ~std::uint64_t{0};
constexpr std::size_t cache_slots = 1 << 15;  // 2 MB
constexpr std::size_t steps_per_poll = 1 << 16;
constexpr std::size_t short_word = 48;  // bytes: up to here looking through all pairs beats a heap

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

std::uint64_t mix(std::uint64_t x) {
  x *= 0x9E3779B97F4A7C15;
  return x ^ x >> 32;
}

}  // namespace

BpeMerges::BpeMerges(const BpeVocabulary& vocabulary) {
  for (int byte = 0; byte < 256; ++byte) {
    byte_tokens_[static_cast<std::size_t>(byte)] = vocabulary.byte_token(static_cast<unsigned char>(byte));
  }
  const std::size_t size = std::bit_ceil(2 * vocabulary.merges().size() + 2);
  slots_.assign(size, {no_pair, {none, 0}});
  mask_ = size - 1;
  std::uint32_t rank = 0;
  for (const BpeMerge& merge : vocabulary.merges()) {
    const std::uint64_t key = pair_key(merge.left, merge.right);
    std::uint64_t slot = mix(key) & mask_;
    while (slots_[slot].pair != no_pair && slots_[slot].pair != key) slot = (slot + 1) & mask_;
    slots_[slot] = {key, {rank++, merge.merged}};  // of a merge that is listed twice the last, as in the references
  }
}

BpeMerges::Merge BpeMerges::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = pair_key(left, right);
  for (std::uint64_t slot = mix(key) & mask_;; slot = (slot + 1) & mask_) {
    if (slots_[slot].pair == key) return slots_[slot].merge;
    if (slots_[slot].pair == no_pair) return {none, 0};
  }
}

void BpeMerges::merge_short(std::int32_t* ids, std::size_t& count) const {
  Merge merges[short_word];  // of ids i and i + 1
  for (std::size_t i = 0; i + 1 < count; ++i) merges[i] = find(ids[i], ids[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == none) return;
    ids[best] = merges[best].merged;
    --count;
    for (std::size_t i = best + 1; i < count; ++i) ids[i] = ids[i + 1];
    for (std::size_t i = best + 1; i + 1 < count; ++i) merges[i] = merges[i + 1];
    if (best + 1 < count) merges[best] = find(ids[best], ids[best + 1]);
    if (best > 0) merges[best - 1] = find(ids[best - 1], ids[best]);
  }
}

void BpeMerges::merge_long(std::vector<std::int32_t>& ids, const Poll& poll) const {
  require(ids.size() < none, "a word of ", ids.size(), " bytes is too long: 4 GB at most without white space");
  std::size_t steps = 0;
  const auto step = [&] {
    if (++steps % steps_per_poll == 0 && poll) poll();
  };
  // A linked list of the tokens, and a heap of the pairs that may merge. What a merge makes stale stays in the heap
  // until it comes up.
  const auto count = static_cast<std::uint32_t>(ids.size()), end = count;
  std::vector<std::uint32_t> next(count), previous(count);
  std::vector<Merge> merges(count, {none, 0});                // of a token and its next; none for one that is gone
  using Candidate = std::pair<std::uint32_t, std::uint32_t>;  // rank, position
  std::vector<Candidate> first;
  for (std::uint32_t i = 0; i < count; ++i) {
    step();
    next[i] = i + 1;
    previous[i] = i == 0 ? end : i - 1;
    if (i + 1 < count) merges[i] = find(ids[i], ids[i + 1]);
    if (merges[i].rank != none) first.emplace_back(merges[i].rank, i);
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap(std::greater<>(), std::move(first));
  const auto renew = [&](std::uint32_t i) {
    merges[i] = next[i] == end ? Merge{none, 0} : find(ids[i], ids[next[i]]);
    if (merges[i].rank != none) heap.emplace(merges[i].rank, i);
  };
  while (!heap.empty()) {
    step();
    const auto [rank, i] = heap.top();
    heap.pop();
    if (merges[i].rank != rank) continue;
    ids[i] = merges[i].merged;
    const std::uint32_t gone = next[i];
    next[i] = next[gone];
    if (next[i] != end) previous[next[i]] = i;
    merges[gone].rank = none;
    renew(i);
    if (previous[i] != end) renew(previous[i]);
  }
  std::size_t kept = 0;
  for (std::uint32_t i = 0; i != end; i = next[i]) ids[kept++] = ids[i];
  ids.resize(kept);
}

void BpeMerges::encode_word(std::string_view word, std::vector<std::int32_t>& tokens, const Poll& poll) const {
  const auto token_of = [&](char byte) { return byte_tokens_[static_cast<unsigned char>(byte)]; };
  if (word.size() <= short_word) {
    std::int32_t ids[short_word];
    std::size_t count = word.size();
    std::transform(word.begin(), word.end(), ids, token_of);
    merge_short(ids, count);
    tokens.insert(tokens.end(), ids, ids + count);
  } else {
    std::vector<std::int32_t> ids(word.size());
    std::transform(word.begin(), word.end(), ids.begin(), token_of);
    merge_long(ids, poll);
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }
}

BpeEncoder::BpeEncoder(std::shared_ptr<const BpeMerges> merges, Poll poll)
    : merges_(std::move(merges)), slots_(cache_slots), poll_(std::move(poll)) {}

void BpeEncoder::encode(std::string_view text, std::vector<std::int32_t>& tokens) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = bpe_word_end(text, begin);
    const std::string_view word = text.substr(begin, end - begin);
    begin = end;
    if (word.size() > 15) {
      merges_->encode_word(word, tokens, poll_);
      continue;
    }
    std::uint64_t key[2] = {};
    std::memcpy(key, word.data(), word.size());
    key[1] |= static_cast<std::uint64_t>(word.size()) << 56;  // little endian: the byte that no word reaches
    Slot& slot = slots_[mix(key[0] ^ mix(key[1])) % cache_slots];
    if (slot.low != key[0] || slot.high != key[1]) {
      const std::size_t before = tokens.size();
      merges_->encode_word(word, tokens);
      const std::size_t count = tokens.size() - before;
      if (count > std::size(slot.tokens)) continue;
      slot.low = key[0];
      slot.high = key[1];
      slot.count = static_cast<std::int32_t>(count);
      std::copy_n(tokens.end() - static_cast<std::ptrdiff_t>(count), count, slot.tokens);
      continue;
    }
    tokens.insert(tokens.end(), slot.tokens, slot.tokens + slot.count);
  }
}

}  // namespace greyhound
