// What attention's kernels for Hopper share. Each warpgroup owns 64 rows of a block's tile and walks along tiles that
// one thread has copied ahead, in a ring of `Stages`; no group waits for another, except for a tile that another still
// reads. Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/cuda/attention_task.cuh>
#include <greyhound/kernels/cuda/attention_tiles.cuh>
#include <greyhound/kernels/cuda/warpgroup.cuh>

#include <type_traits>

namespace greyhound::cuda::hopper {

// Tensors [batch, tokens, heads, size]; of packed ones, queries, keys and values count as heads.
struct AttentionMaps {
  CUtensorMap qkv, out, grad_out, grad_qkv;
};

// What backward needs of 64 queries: exp2(score * log2_scale - log2_lse) is a weight, dot the sum of grad_out * out.
// Queries behind the last have weights of zero.
struct RowValues {
  static constexpr int rows = 64;
  float log2_lse[rows], dots[rows];
};

template <int head_columns, int groups, int steps, int stages, int blocks, bool left_in_registers = false>
struct Tiling {
  static constexpr int D = head_columns;
  static constexpr int Groups = groups;  // of 64 rows
  static constexpr int Step = steps;     // rows of the tiles that are walked along
  static constexpr int Stages = stages;
  static constexpr int Blocks = blocks;  // on a multiprocessor at once
  static constexpr bool LeftInRegisters = left_in_registers;
  static constexpr int Rows = Groups * group_rows;
  static constexpr int Threads = Groups * group_threads;
  static constexpr int group_tile_bytes = group_rows * D * 2;
  static constexpr int step_tile_bytes = Step * D * 2;
  static constexpr int alignment = 1024;
  // `Tiles` that the groups own, a pair of tiles in each stage.
  template <int Tiles>
  static constexpr int shared_bytes = alignment + Tiles* Groups* group_tile_bytes + Stages * 2 * step_tile_bytes;
  static_assert(Step % 64 == 0 && Groups <= 3, "copies of 64 rows; barriers of three groups");
  static_assert(Stages >= 2, "a group waits for a tile while it still holds the one before");
};

// The ring of tiles: `full` says that a stage has been copied, the counter how many warps have read it. A barrier tells
// its phase only from the one before, so every warp waits for every tile before it releases it, tiles of no use to it
// included: one that has not seen a stage's first copy end would take that copy for the second.
template <int Stages>
struct Ring {
  Barrier full[Stages];
  unsigned readers[Stages];

  __device__ void initialize_all() {
#pragma unroll
    for (int s = 0; s < Stages; ++s) {
      initialize(full[s], 1);
      readers[s] = 0;
    }
  }
  // This warp has waited for tile `i` and read it. The last of `warps` to say so starts the copy of a next one, load(i
  // + Stages).
  template <class Load>
  __device__ void release(int i, int warps, Load&& load) {
    __syncwarp();
    const unsigned last = static_cast<unsigned>(warps) - 1;
    if (threadIdx.x % 32 == 0 && count_arrival(readers[i % Stages], last) == last) load(i + Stages);
    __syncwarp();
  }
  __device__ void wait_for(int i) { wait(full[i % Stages], static_cast<unsigned>(i / Stages % 2)); }
  // Tiles before `end` are of no use to this warp.
  template <class Load>
  __device__ void pass_over(int end, int warps, Load&& load) {
#pragma unroll 1
    for (int i = 0; i < end; ++i) {
      wait_for(i);
      release(i, warps, load);
    }
  }
};

template <int D, int Rows>
__device__ inline bool has_non_finite_rows(const unsigned char* tile) {
  bool found = false;
  for (int i = static_cast<int>(threadIdx.x) % group_threads; i < Rows * D / 8; i += group_threads) {
    const uint4 bits = *reinterpret_cast<const uint4*>(tile + i * 16);
    found =
        found || has_non_finite(bits.x) || has_non_finite(bits.y) || has_non_finite(bits.z) || has_non_finite(bits.w);
  }
  return found;
}

// Eight rows of zeros that stand for all rows of a tile.
struct ZeroRows {
  __align__(1024) unsigned char bytes[8 * row_bytes];

  __device__ void initialize_all() {
    if (threadIdx.x < sizeof bytes / 16) reinterpret_cast<uint4*>(bytes)[threadIdx.x] = make_uint4(0, 0, 0, 0);
    publish_stores();
  }
};

// add_weighted_rows_async on the tile of the diagonal. Weights behind it are 0, but 0 times a NaN is a NaN: where a row
// of the tile is not finite, zeros are added here, and the visible rows at the end, one by one.
template <int D, int Steps>
__device__ inline void add_diagonal_rows_async(float (&sums)[D / 8][4], unsigned (&weights)[Steps][4],
                                               const unsigned char* tile, const ZeroRows& zeros, bool one_by_one) {
  const Descriptor rows = one_by_one ? describe_repeated(zeros.bytes) : describe(tile, Steps * 16 * row_bytes);
  const unsigned step = one_by_one ? 0 : 16 * row_bytes;
#pragma unroll
  for (int s = 0; s < Steps; ++s) {
#pragma unroll
    for (int e = 0; e < 4; ++e) weights[s][e] = one_by_one ? 0 : weights[s][e];
  }
  hold(weights);
  fence_products();
#pragma unroll
  for (int s = 0; s < Steps; ++s) add_async<true>(sums, weights[s], advance(rows, s * step));
}

// The product of row `row` of a group's tile and a row in global memory, in all four lanes that share the row.
template <int D>
__device__ inline float row_product(const unsigned char* tile, int row, const bf16* other, int size) {
  const int t = threadIdx.x % 4;
  float sum = 0;
#pragma unroll 1
  for (int n = 0; 8 * n < size; ++n) {
    const unsigned a = *reinterpret_cast<const unsigned*>(tile + n / 8 * group_rows * row_bytes + row * row_bytes +
                                                          (n % 8 ^ row % 8) * 16 + 4 * t);
    const unsigned b = *reinterpret_cast<const unsigned*>(other + 8 * n + 2 * t);
    sum = fmaf(__uint_as_float(a << 16), __uint_as_float(b << 16), sum);
    sum = fmaf(__uint_as_float(a & 0xffff0000u), __uint_as_float(b & 0xffff0000u), sum);
  }
  sum += __shfl_xor_sync(full_warp, sum, 1);
  return sum + __shfl_xor_sync(full_warp, sum, 2);
}

// One of the lane's two rows of sums += weight * a row in global memory.
template <int D>
__device__ inline void add_row(float (&sums)[D / 8][4], int half, float weight, const bf16* other, int size) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    if (8 * n >= size) break;
    const unsigned word = *reinterpret_cast<const unsigned*>(other + 8 * n + 2 * t);
    float& first = half == 0 ? sums[n][0] : sums[n][2];
    float& second = half == 0 ? sums[n][1] : sums[n][3];
    first = fmaf(weight, __uint_as_float(word << 16), first);
    second = fmaf(weight, __uint_as_float(word & 0xffff0000u), second);
  }
}

// This lane's share of the sum of grad_out * out over a row, pieces of 16 bytes.
__device__ inline float part_of_dot(const bf16* out, const bf16* grad_out, int size) {
  float dot = 0;
  for (int first = static_cast<int>(threadIdx.x) % 4 * 8; first < size; first += 32) {
    const uint4 a = *reinterpret_cast<const uint4*>(out + first);
    const uint4 b = *reinterpret_cast<const uint4*>(grad_out + first);
    const unsigned words[4] = {a.x, a.y, a.z, a.w}, others[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      dot = fmaf(__uint_as_float(words[i] << 16), __uint_as_float(others[i] << 16), dot);
      dot = fmaf(__uint_as_float(words[i] & 0xffff0000u), __uint_as_float(others[i] & 0xffff0000u), dot);
    }
  }
  return dot;
}

// 16 columns of products as a left operand.
template <int Blocks>
__device__ inline void pack_left(unsigned (&weights)[Blocks / 2][4], const float (&values)[Blocks][4]) {
#pragma unroll
  for (int s = 0; s < Blocks / 2; ++s) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      weights[s][2 * half] = pack_bf16(values[2 * s + half][0], values[2 * s + half][1]);
      weights[s][2 * half + 1] = pack_bf16(values[2 * s + half][2], values[2 * s + half][3]);
    }
  }
}

}  // namespace greyhound::cuda::hopper
