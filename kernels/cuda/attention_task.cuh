// What attention's kernels are told, and which part of it a thread block does. Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/elementwise.h>

#include <cstdint>
#include <cstring>

namespace greyhound::cuda {

// Where the words of dropout come from: one is kept when it is at least `threshold`, which is the same as
// uniform(word) >= probability.
struct AttentionDropout {
  std::uint64_t key = 0;
  std::uint64_t first_row = 0;
  unsigned threshold = 0;
  float kept = 1;                         // 1 / (1 - probability)
  const DropoutOrigin* origin = nullptr;  // see Dropout
};

template <class T>
struct AttentionTask {
  const T* qkv = nullptr;
  T* out = nullptr;             // backward only reads it
  float* lse = nullptr;         // [all_heads, tokens]; optional in forward
  const T* grad_out = nullptr;  // from here on: backward
  T* grad_qkv = nullptr;
  float* row_dots = nullptr;  // [all_heads, tokens]: sum of grad_out * out
  std::int64_t qkv_stride = 0, out_stride = 0, grad_out_stride = 0, grad_qkv_stride = 0;
  int tokens = 0, channels = 0, heads = 0, size = 0;
  int all_heads = 0;  // batch * heads
  int section = 1;    // see place_of
  float scale = 1;
  AttentionDropout dropout;
};

struct Place {
  int which;            // of all_heads
  int batch, head;      // which = batch * heads + head
  int order;            // which of its head's blocks, 0 the one to start first
  DropoutOrigin draws;  // of dropout
};

// Blocks start in the order of their numbers. Heads are taken in sections whose keys and values stay in L2; inside a
// section the first block of every head comes first, then the second of every head: the caller lets those with most
// work come first, so that the end of the kernel is short.
template <class T>
__device__ inline Place place_of(const AttentionTask<T>& task, unsigned number, int blocks_per_head) {
  const unsigned per_section = static_cast<unsigned>(task.section) * static_cast<unsigned>(blocks_per_head);
  const int first = static_cast<int>(number / per_section) * task.section;
  const int count = min(task.section, task.all_heads - first);
  const int rest = static_cast<int>(number % per_section);
  const int which = first + rest % count;
  return {which, which / task.heads, which % task.heads, rest / count,
          mask_origin(task.dropout.origin, task.dropout.key, task.dropout.first_row)};
}

// Row `row` of a head's queries, keys (part 1) or values (part 2).
template <class T>
__device__ inline const T* rows_of(const AttentionTask<T>& task, const Place& place, int part, int row) {
  return task.qkv + (static_cast<std::int64_t>(place.batch) * task.tokens + row) * task.qkv_stride +
         part * task.channels + place.head * task.size;
}
template <class T>
__device__ inline T* grad_rows_of(const AttentionTask<T>& task, const Place& place, int part, int row) {
  return task.grad_qkv + (static_cast<std::int64_t>(place.batch) * task.tokens + row) * task.grad_qkv_stride +
         part * task.channels + place.head * task.size;
}
template <class T>
__device__ inline T* out_rows_of(const AttentionTask<T>& task, const Place& place, int row) {
  return task.out + (static_cast<std::int64_t>(place.batch) * task.tokens + row) * task.out_stride +
         place.head * task.size;
}
template <class T>
__device__ inline const T* grad_out_rows_of(const AttentionTask<T>& task, const Place& place, int row) {
  return task.grad_out + (static_cast<std::int64_t>(place.batch) * task.tokens + row) * task.grad_out_stride +
         place.head * task.size;
}

// The words of keys 4 * key_block .. 4 * key_block + 3 for the query in row `row` of the sequence.
template <class T>
__device__ inline uint4 dropout_words(const AttentionTask<T>& task, const Place& place, int row, int key_block) {
  const std::uint64_t low = static_cast<std::uint64_t>(place.head) << 32 | static_cast<unsigned>(key_block);
  const std::uint64_t global_row = static_cast<std::uint64_t>(place.batch) * task.tokens + row;
  const Philox::Block block = Philox{place.draws.key}(low, place.draws.first_row + global_row);
  uint4 words;
  memcpy(&words, &block, sizeof words);
  return words;
}

// Four lanes, `Step` apart from each other and numbered `index` 0 to 3, each drew four words: word `index` of each.
template <int Step>
__device__ inline void transpose_words(unsigned (&words)[4], const uint4& drawn, int index) {
  constexpr unsigned full_warp = 0xffffffffu;
  const bool odd = index % 2 != 0, second = index / 2 != 0;
  const unsigned a = __shfl_xor_sync(full_warp, odd ? drawn.x : drawn.y, Step);
  const unsigned b = __shfl_xor_sync(full_warp, odd ? drawn.z : drawn.w, Step);
  const unsigned w0 = odd ? a : drawn.x, w1 = odd ? drawn.y : a;
  const unsigned w2 = odd ? b : drawn.z, w3 = odd ? drawn.w : b;
  const unsigned c = __shfl_xor_sync(full_warp, second ? w0 : w2, 2 * Step);
  const unsigned d = __shfl_xor_sync(full_warp, second ? w1 : w3, 2 * Step);
  words[0] = second ? c : w0;
  words[1] = second ? d : w1;
  words[2] = second ? w2 : c;
  words[3] = second ? w3 : d;
}

}  // namespace greyhound::cuda
