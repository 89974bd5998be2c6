// Reductions over a thread block in a fixed order. Of the CUDA backend; loss/row_loss.cuh needs it.
#pragma once

#include <cstring>

namespace greyhound::cuda {

inline constexpr int warp_size = 32;
inline constexpr int max_warps = 32;  // of a block of 1024 threads

// Applies `shuffle` to each word of any struct of 32-bit words.
template <class T, class Shuffle>
__device__ T shuffle_words(const T& value, Shuffle shuffle) {
  static_assert(sizeof(T) % sizeof(unsigned) == 0, "made of 32-bit words");
  unsigned words[sizeof(T) / sizeof(unsigned)];
  memcpy(words, &value, sizeof(T));
  for (unsigned& word : words) word = shuffle(word);
  T other;
  memcpy(&other, words, sizeof(T));
  return other;
}

// The value of the lane `offset` above, and that of the first lane.
template <class T>
__device__ T shuffle_down(const T& value, int offset) {
  return shuffle_words(value, [&](unsigned word) { return __shfl_down_sync(0xffffffffu, word, offset); });
}
template <class T>
__device__ T shuffle_from_first(const T& value) {
  return shuffle_words(value, [](unsigned word) { return __shfl_sync(0xffffffffu, word, 0); });
}

// Reduces one value per thread; every thread gets thread 0's result. combine(T& a, const T& b) adds b to a. blockDim.x
// is a multiple of 32; `shared` has max_warps entries. The tree depends on blockDim.x alone. The barriers inside also
// order what the block read before it against what it writes after.
template <class T, class Combine>
__device__ T block_reduce(T value, const T& neutral, T* shared, Combine combine) {
  const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  for (int offset = warp_size / 2; offset > 0; offset /= 2) combine(value, shuffle_down(value, offset));
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  if (warp == 0) {
    value = lane < static_cast<int>(blockDim.x) / warp_size ? shared[lane] : neutral;
    for (int offset = warp_size / 2; offset > 0; offset /= 2) combine(value, shuffle_down(value, offset));
    if (lane == 0) shared[0] = value;
  }
  __syncthreads();
  return shared[0];
}

}  // namespace greyhound::cuda
