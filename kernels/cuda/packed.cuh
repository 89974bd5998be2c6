// Matrix elements on the device: conversions, and 16 bytes of a row as one access. Of the CUDA
// backend; loss/row_loss.cuh needs it.
#pragma once

#include <greyhound/core/dtype.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstring>

namespace greyhound::cuda {

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(bf16 value) { return __uint_as_float(static_cast<unsigned>(value.bits) << 16); }
__device__ inline float widen(fp16 value) { return __half2float(__ushort_as_half(value.bits)); }

// Rounds to nearest even.
template <class T>
__device__ T narrow(float value);
template <>
__device__ inline float narrow<float>(float value) {
  return value;
}
template <>
__device__ inline bf16 narrow<bf16>(float value) {
  return bf16{__bfloat16_as_ushort(__float2bfloat16_rn(value))};
}
template <>
__device__ inline fp16 narrow<fp16>(float value) {
  return fp16{__half_as_ushort(__float2half_rn(value))};
}

// Elements of T in 16 bytes, the widest access of one thread.
template <class T>
inline constexpr int packed_size = 16 / static_cast<int>(sizeof(T));

template <class T>
struct Packed {
  uint4 bits;
};

// One 32-bit word as one or two elements.
__device__ inline void unpack_word(unsigned word, float* values, float) { values[0] = __uint_as_float(word); }
__device__ inline void unpack_word(unsigned word, float* values, bf16) {
  values[0] = __uint_as_float(word << 16);
  values[1] = __uint_as_float(word & 0xffff0000u);
}
__device__ inline void unpack_word(unsigned word, float* values, fp16) {
  values[0] = __half2float(__ushort_as_half(static_cast<unsigned short>(word)));
  values[1] = __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16)));
}
__device__ inline unsigned pack_word(const float* values, float) { return __float_as_uint(values[0]); }
template <class T>
__device__ inline unsigned pack_word(const float* values, T) {
  return static_cast<unsigned>(narrow<T>(values[0]).bits) | static_cast<unsigned>(narrow<T>(values[1]).bits) << 16;
}

template <class T>
__device__ inline void unpack(Packed<T> packed, float (&values)[packed_size<T>]) {
  constexpr int per_word = packed_size<T> / 4;
  unpack_word(packed.bits.x, values, T{});
  unpack_word(packed.bits.y, values + per_word, T{});
  unpack_word(packed.bits.z, values + 2 * per_word, T{});
  unpack_word(packed.bits.w, values + 3 * per_word, T{});
}

template <class T>
__device__ inline Packed<T> pack(const float (&values)[packed_size<T>]) {
  constexpr int per_word = packed_size<T> / 4;
  return {make_uint4(pack_word(values, T{}), pack_word(values + per_word, T{}), pack_word(values + 2 * per_word, T{}),
                     pack_word(values + 3 * per_word, T{}))};
}

// The largest element of some packs; NaN only where all are.
template <int count>
__device__ inline float largest(const Packed<float> (&packs)[count]) {
  float most = -INFINITY;
#pragma unroll
  for (int g = 0; g < count; ++g) {
    float values[4];
    unpack(packs[g], values);
    most = fmaxf(most, fmaxf(fmaxf(values[0], values[1]), fmaxf(values[2], values[3])));
  }
  return most;
}
template <class Pair, class T, int count>
__device__ inline Pair largest_pair(const Packed<T> (&packs)[count]) {
  const auto pair = [](unsigned word) {
    Pair value;
    memcpy(&value, &word, sizeof value);
    return value;
  };
  const auto of_pack = [&](const uint4& bits) {
    return __hmax2(__hmax2(pair(bits.x), pair(bits.y)), __hmax2(pair(bits.z), pair(bits.w)));
  };
  Pair most = of_pack(packs[0].bits);
#pragma unroll
  for (int g = 1; g < count; ++g) most = __hmax2(most, of_pack(packs[g].bits));
  return most;
}
template <int count>
__device__ inline float largest(const Packed<bf16> (&packs)[count]) {
  const float2 pair = __bfloat1622float2(largest_pair<__nv_bfloat162>(packs));
  return fmaxf(pair.x, pair.y);
}
template <int count>
__device__ inline float largest(const Packed<fp16> (&packs)[count]) {
  const float2 pair = __half22float2(largest_pair<__half2>(packs));
  return fmaxf(pair.x, pair.y);
}

// The pack with -inf in place of one element.
template <class T>
__device__ inline Packed<T> without_element(Packed<T> packed, int element) {
  float values[packed_size<T>];
  unpack(packed, values);
#pragma unroll
  for (int i = 0; i < packed_size<T>; ++i) {
    if (i == element) values[i] = -INFINITY;
  }
  return pack<T>(values);
}

// Bytes shift .. shift + 16 of 32, from the lowest; `shift` is even and below 16.
__device__ inline uint4 middle_bytes(const uint4& low, const uint4& high, unsigned shift) {
  unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  if (shift & 8) {
#pragma unroll
    for (int i = 0; i < 6; ++i) words[i] = words[i + 2];
  }
  if (shift & 4) {
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = words[i + 1];
  }
  if (shift & 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], 16);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Whether a row can be read or written 16 bytes at a time.
__device__ inline bool is_packed_aligned(const void* row) {
  return reinterpret_cast<unsigned long long>(row) % 16 == 0;
}

// Elements [first, first + packed_size) of a row of `columns`; what lies behind its end reads as 0. The elements that a
// thread gets never depend on the alignment, so neither does the order of any sum over them.
template <class T>
__device__ inline Packed<T> load_packed(const T* row, int first, int columns, bool aligned) {
  if (aligned && first <= columns - packed_size<T>) return {*reinterpret_cast<const uint4*>(row + first)};
  float values[packed_size<T>];
#pragma unroll
  for (int i = 0; i < packed_size<T>; ++i) values[i] = first + i < columns ? widen(row[first + i]) : 0.0f;
  return pack<T>(values);  // exact: each value came from a T
}

template <class T>
__device__ inline void store_packed(T* row, int first, int columns, bool aligned,
                                    const float (&values)[packed_size<T>]) {
  if (aligned && first <= columns - packed_size<T>) {
    *reinterpret_cast<uint4*>(row + first) = pack<T>(values).bits;
    return;
  }
#pragma unroll
  for (int i = 0; i < packed_size<T>; ++i) {
    if (first + i < columns) row[first + i] = narrow<T>(values[i]);
  }
}

// Zeros in packs first_pack, first_pack + step, ... of a row of `columns`.
template <class T>
__device__ inline void write_zeros(T* row, int first_pack, int step, int columns) {
  const bool aligned = is_packed_aligned(row);
  const float zeros[packed_size<T>] = {};
  for (int pack = first_pack; pack * packed_size<T> < columns; pack += step) {
    store_packed(row, pack * packed_size<T>, columns, aligned, zeros);
  }
}

}  // namespace greyhound::cuda
