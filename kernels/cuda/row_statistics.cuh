// Online statistics of a row of logits: maximum, log-sum-exp and friends in one read. M. Milakov, N. Gimelshein,
// "Online normalizer calculation for softmax", 2018. Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/cuda/block_reduce.cuh>
#include <greyhound/kernels/cuda/fast_math.cuh>
#include <greyhound/kernels/cuda/packed.cuh>

#include <cfloat>
#include <cmath>
#include <cstdint>

namespace greyhound::cuda {

// exp(x) for x <= 0: to 2 ulp for fp32 logits; for 16-bit ones to 7e-6 at x = -80 and better above, in a third of the
// instructions, and 0 below fp32's smallest normal number.
template <class T>
__device__ inline float row_exp(float x) {
  if constexpr (sizeof(T) == 4) {
    return expf(x);
  } else {
    return fast_exp2(x * 1.4426950408889634f);
  }
}

// exp(x) * 2^shift, as exactly as row_exp: with a shift the result does not reach the smallest numbers so soon.
template <class T>
__device__ inline float shifted_exp(float x, float shift) {
  if constexpr (sizeof(T) == 4) {
    return expf(x);  // which needs none
  } else {
    return fast_exp2(fmaf(x, 1.4426950408889634f, shift));
  }
}

// z = softcap(logit_scale * u), softcap(x) = c tanh(x / c). Infinite logits stay what they are, capped or not: masked,
// or a NaN row.
struct Squash {
  float scale;
  float cap;  // 0: none

  // Whether z is anything but u. Kernels are compiled for both, since most callers have neither scale nor cap.
  bool active() const { return scale != 1 || cap > 0; }

  // With `slope` also dz/du / scale. tanh and its derivative both come from q = exp(-2 |x|): tanh = (1 - q) / (1 + q),
  // but its Taylor polynomial where that cancels; 1 - tanh^2 = 4 q / (1 + q)^2, which never does.
  template <bool active>
  __device__ float apply(float u, float* slope = nullptr) const {
    if (slope != nullptr) *slope = 1;
    if constexpr (!active) return u;
    if (cap == 0) {
      const float z = scale * u;
      return z == -INFINITY && u != -INFINITY ? -FLT_MAX : z;  // scaling must not mask a finite logit
    }
    const float x = scale * u / cap;
    const float magnitude = fabsf(x);
    const float q = expf(-2.0f * magnitude);
    const float large = (1.0f - q) / (1.0f + q);
    const float square = x * x;
    float p = -1382.0f / 155925.0f;
    p = fmaf(p, square, 62.0f / 2835.0f);
    p = fmaf(p, square, -17.0f / 315.0f);
    p = fmaf(p, square, 2.0f / 15.0f);
    p = fmaf(p, square, -1.0f / 3.0f);
    const float tanh = magnitude < 0.35f ? fmaf(p * square, x, x) : copysignf(large, x);
    if (slope != nullptr) *slope = 4.0f * q / ((1.0f + q) * (1.0f + q));
    return isinf(u) ? u : x != x ? x : cap * tanh;
  }
};

// Over the unmasked columns seen so far. Every sum has terms of one sign, so nothing cancels whatever the offset of z.
struct RowStatistics {
  float max;           // M
  float sum;           // sum of exp(z - M)
  float gap_sum;       // sum of M - z
  float entropy_sum;   // sum of exp(z - M) (M - z)
  float argmax_value;  // the largest raw logit, and its lowest column
  int argmax;
  int count;

  __device__ static RowStatistics none() { return {-INFINITY, 0, 0, 0, -INFINITY, -1, 0}; }
};

// Moves the sums to a larger maximum. extras: gap_sum, entropy_sum, argmax and count are wanted.
template <class T, bool extras>
__device__ inline void raise_max(RowStatistics& s, float max) {
  const float shift = max - s.max;
  const float factor = row_exp<T>(-shift);  // 0 while nothing was seen
  if (extras && s.count > 0) {
    s.entropy_sum = factor * (s.entropy_sum + shift * s.sum);
    s.gap_sum += static_cast<float>(s.count) * shift;
  }
  s.sum *= factor;
  s.max = max;
}

// log S of all columns, from the part of one column (1 when it is the maximum) and that of the others: the loss of a
// confident row is far below the rounding of 1 + others.
__device__ inline float log_of_sum(float others, float one) {
  return one == 1.0f ? log1pf(others) : logf(others + one);
}

// Adds columns first_column .. first_column + n with raw logits u, masked ones being -inf. NaN ends in `sum` and stays
// there; +inf makes NaN of itself (inf - inf).
template <class T, bool extras, int n>
__device__ inline void add_columns(RowStatistics& s, const float (&u)[n], const float (&z)[n], int first_column) {
  float top = z[0];
#pragma unroll
  for (int i = 1; i < n; ++i) top = fmaxf(top, z[i]);
  if (top > s.max) raise_max<T, extras>(s, top);
  const float base = s.max == -INFINITY ? 0.0f : s.max;  // exp(-inf - 0) is 0, exp(-inf + inf) would be NaN
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const float e = row_exp<T>(z[i] - base);
    s.sum += e;
    if (extras && z[i] != -INFINITY) {
      const float gap = base - z[i];
      s.gap_sum += gap;
      s.entropy_sum += e * gap;
      s.count += 1;
      if (u[i] > s.argmax_value) {
        s.argmax_value = u[i];
        s.argmax = first_column + i;
      }
    }
  }
}

// Adds b to a; of equal maxima the lower column stays.
template <class T, bool extras>
__device__ inline void combine(RowStatistics& a, RowStatistics b) {
  if (b.max > a.max) raise_max<T, extras>(a, b.max);
  if (a.max > b.max) raise_max<T, extras>(b, a.max);
  a.sum += b.sum;
  if constexpr (extras) {
    a.gap_sum += b.gap_sum;
    a.entropy_sum += b.entropy_sum;
    a.count += b.count;
    if (b.argmax_value > a.argmax_value || (b.argmax_value == a.argmax_value && b.argmax >= 0 && b.argmax < a.argmax)) {
      a.argmax_value = b.argmax_value;
      a.argmax = b.argmax;
    }
  }
}

// The statistics of a warp, in every lane.
template <class T, bool extras>
__device__ inline RowStatistics reduce_warp(RowStatistics s) {
  if constexpr (extras) {
    for (int offset = warp_size / 2; offset > 0; offset /= 2) combine<T, true>(s, shuffle_down(s, offset));
    return shuffle_from_first(s);
  } else {
    float max = s.max;
    for (int offset = warp_size / 2; offset > 0; offset /= 2) {
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, offset));
    }
    const float base = max == -INFINITY ? 0.0f : max;
    s.sum *= row_exp<T>(s.max - base);
    s.max = max;
    for (int offset = warp_size / 2; offset > 0; offset /= 2) s.sum += __shfl_xor_sync(0xffffffffu, s.sum, offset);
    return s;
  }
}

// Loads per thread in flight before the first is used.
inline constexpr int loads_in_flight = 4;

// Statistics of columns [0, vocab) but `excluded` (-1: none) of a row stored in `columns`, by the whole block; all
// threads get them. The first `cached` packs of 16 bytes are kept in `row_cache` on the way.
template <class T, bool squashed, bool extras>
__device__ RowStatistics row_statistics(const T* row, int vocab, int columns, int excluded, const Squash& squash,
                                        uint4* row_cache, int cached) {
  constexpr int size = packed_size<T>;
  const bool aligned = is_packed_aligned(row);
  const int packs = (vocab + size - 1) / size;
  const int excluded_pack = excluded < 0 ? -1 : excluded / size;
  RowStatistics s = RowStatistics::none();
  for (int base = threadIdx.x; base < packs; base += loads_in_flight * blockDim.x) {
    Packed<T> loaded[loads_in_flight];
#pragma unroll
    for (int j = 0; j < loads_in_flight; ++j) {
      const int pack = base + j * blockDim.x;
      if (pack < packs) loaded[j] = load_packed(row, pack * size, columns, aligned);
    }
#pragma unroll
    for (int j = 0; j < loads_in_flight; ++j) {
      const int pack = base + j * blockDim.x;
      if (pack >= packs) break;
      if (pack < cached) row_cache[pack] = loaded[j].bits;
      float u[size], z[size];
      unpack(loaded[j], u);
      if (pack == excluded_pack || pack == packs - 1) {
#pragma unroll
        for (int i = 0; i < size; ++i) {
          if (pack * size + i == excluded || pack * size + i >= vocab) u[i] = -INFINITY;
        }
      }
#pragma unroll
      for (int i = 0; i < size; ++i) z[i] = squash.apply<squashed>(u[i]);
      add_columns<T, extras>(s, u, z, pack * size);
    }
  }
  __shared__ RowStatistics shared[max_warps];
  return block_reduce(s, RowStatistics::none(), shared,
                      [](RowStatistics& a, const RowStatistics& b) { combine<T, extras>(a, b); });
}

}  // namespace greyhound::cuda
