// Attention's forward on tensor cores: one block for a tile of queries of one head, a warp for some of its rows, keys
// and values in tiles that are copied while the one before is at work. Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/cuda/attention_task.cuh>
#include <greyhound/kernels/cuda/attention_tiles.cuh>

#include <cmath>

namespace greyhound::cuda {

inline constexpr float log2_of_e = 1.4426950408889634f;
inline constexpr float ln_of_2 = 0.6931471805599453f;

template <int head_columns, int atoms, int warps, int keys, int blocks>
struct ForwardTiling {
  static constexpr int D = head_columns;  // columns of a tile; a head's size is at most that
  static constexpr int Atoms = atoms;     // 16 queries each, of a warp
  static constexpr int Warps = warps;
  static constexpr int Keys = keys;      // of a tile
  static constexpr int Blocks = blocks;  // at least so many on a multiprocessor at once
  static constexpr int Queries = Warps * Atoms * 16;
  static constexpr int Threads = Warps * 32;
  static constexpr int shared_bytes = (Queries + 4 * Keys) * tile_stride<D> * 2;
  static_assert(Queries % Keys == 0 && (Keys % (16 * Atoms) == 0),
                "the first tile that a warp works on holds a visible key for each of its rows");
};

using Forward64 = ForwardTiling<64, 2, 4, 64, 2>;
using Forward128 = ForwardTiling<128, 2, 4, 32, 2>;

// -inf where the key stands behind the query. `query` and `key` are the positions of the first row and column.
template <int Atoms, int Blocks>
__device__ inline void hide_later_keys(float (&scores)[Atoms][Blocks][4], int query, int key) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int a = 0; a < Atoms; ++a) {
#pragma unroll
    for (int b = 0; b < Blocks; ++b) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (key + 8 * b + 2 * t + e % 2 > query + 16 * a + g + e / 2 * 8) scores[a][b][e] = -INFINITY;
      }
    }
  }
}

__device__ inline float largest_of_quad(float value) {
  value = fmaxf(value, __shfl_xor_sync(full_warp, value, 1));
  return fmaxf(value, __shfl_xor_sync(full_warp, value, 2));
}
__device__ inline float sum_of_quad(float value) {
  value += __shfl_xor_sync(full_warp, value, 1);
  return value + __shfl_xor_sync(full_warp, value, 2);
}

// Scores to weights relative to the new maximum of each row; maximum, total (of this lane's columns) and the sums so
// far are brought up to date. `log2_scale`: of scores, into exponents of 2.
template <int D, int Atoms, int Blocks>
__device__ inline void online_softmax(float (&scores)[Atoms][Blocks][4], float (&maximum)[Atoms][2],
                                      float (&total)[Atoms][2], float (&sums)[Atoms][D / 8][4], float log2_scale) {
#pragma unroll
  for (int a = 0; a < Atoms; ++a) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = maximum[a][half];
#pragma unroll
      for (int b = 0; b < Blocks; ++b) most = fmaxf(most, fmaxf(scores[a][b][2 * half], scores[a][b][2 * half + 1]));
      most = largest_of_quad(most);
      // As long as every score is -inf, 0 takes the maximum's place: -inf - -inf would be NaN.
      const float reference = most == -INFINITY ? 0.0f : most * log2_scale;
      const float correction = fast_exp2(fmaf(maximum[a][half], log2_scale, -reference));
      maximum[a][half] = most;
      float sum = 0;
#pragma unroll
      for (int b = 0; b < Blocks; ++b) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[a][b][e] = fast_exp2(fmaf(scores[a][b][e], log2_scale, -reference));
          sum += scores[a][b][e];
        }
      }
      total[a][half] = fmaf(total[a][half], correction, sum);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        sums[a][n][2 * half] *= correction;
        sums[a][n][2 * half + 1] *= correction;
      }
    }
  }
}

// The words of dropout for this lane's four elements of 16 x 8 [queries, keys]; `query` and `key` are the positions of
// the first row and column. One block of words holds four keys of a query, two lanes' columns: the even lane draws for
// the upper row, the odd one for the lower row, and each hands the other its half.
template <class T>
__device__ inline void words_of_queries(unsigned (&words)[4], const AttentionTask<T>& task, const Place& place,
                                        int query, int key) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const bool odd = t % 2 != 0;
  const uint4 mine = dropout_words(task, place, query + g + (odd ? 8 : 0), key / 4 + t / 2);
  const unsigned other0 = __shfl_xor_sync(full_warp, odd ? mine.x : mine.z, 1);
  const unsigned other1 = __shfl_xor_sync(full_warp, odd ? mine.y : mine.w, 1);
  words[0] = odd ? other0 : mine.x;
  words[1] = odd ? other1 : mine.y;
  words[2] = odd ? mine.z : other0;
  words[3] = odd ? mine.w : other1;
}

template <class Tiling, bool WithDropout>
__global__ void __launch_bounds__(Tiling::Threads, Tiling::Blocks)
    attention_forward_kernel(const __grid_constant__ AttentionTask<bf16> task, int blocks_per_head) {
  constexpr int D = Tiling::D, Atoms = Tiling::Atoms, Keys = Tiling::Keys, Queries = Tiling::Queries;
  extern __shared__ __align__(128) unsigned char attention_memory[];
  bf16* const query_tile = reinterpret_cast<bf16*>(attention_memory);
  bf16* const key_tiles = query_tile + Queries * tile_stride<D>;
  bf16* const value_tiles = key_tiles + 2 * Keys * tile_stride<D>;

  const Place place = place_of(task, blockIdx.x, blocks_per_head);
  const int first_query = (blocks_per_head - 1 - place.order) * Queries;  // the last queries see most keys
  const int warp = threadIdx.x / 32;
  const int warp_query = first_query + warp * Atoms * 16;
  bf16* const warp_rows = query_tile + warp * Atoms * 16 * tile_stride<D>;

  const auto load_keys = [&](int tile, int buffer) {
    load_tile<D, Keys, Tiling::Threads>(key_tiles + buffer * Keys * tile_stride<D>,
                                        rows_of(task, place, 1, tile * Keys), task.qkv_stride,
                                        task.tokens - tile * Keys, task.size);
    load_tile<D, Keys, Tiling::Threads>(value_tiles + buffer * Keys * tile_stride<D>,
                                        rows_of(task, place, 2, tile * Keys), task.qkv_stride,
                                        task.tokens - tile * Keys, task.size);
  };
  load_tile<D, Queries, Tiling::Threads>(query_tile, rows_of(task, place, 0, first_query), task.qkv_stride,
                                         task.tokens - first_query, task.size);
  int tile = (min(first_query + Queries, task.tokens) - 1) / Keys, buffer = 0;
  load_keys(tile, buffer);

  float sums[Atoms][D / 8][4], maximum[Atoms][2], total[Atoms][2];
#pragma unroll
  for (int a = 0; a < Atoms; ++a) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n) sums[a][n][0] = sums[a][n][1] = sums[a][n][2] = sums[a][n][3] = 0;
    maximum[a][0] = maximum[a][1] = -INFINITY;
    total[a][0] = total[a][1] = 0;
  }
  const float log2_scale = task.scale * log2_of_e;

  for (; tile >= 0; --tile, buffer ^= 1) {
    // After the barrier this tile is there for all, and nobody reads the buffer of the one before any more.
    wait_for_copies();
    __syncthreads();
    if (tile > 0) load_keys(tile - 1, buffer ^ 1);
    const int first_key = tile * Keys;
    if (first_key >= warp_query + Atoms * 16) continue;

    float scores[Atoms][Keys / 8][4];
    multiply_rows<D>(scores, warp_rows, key_tiles + buffer * Keys * tile_stride<D>);
    const bool on_diagonal = first_key + Keys > warp_query;
    if (on_diagonal) hide_later_keys(scores, warp_query, first_key);
    online_softmax<D>(scores, maximum, total, sums, log2_scale);
    if (WithDropout) {
#pragma unroll
      for (int a = 0; a < Atoms; ++a) {
#pragma unroll
        for (int b = 0; b < Keys / 8; ++b) {
          unsigned words[4];
          words_of_queries(words, task, place, warp_query + 16 * a, first_key + 8 * b);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if (words[e] < task.dropout.threshold) scores[a][b][e] = 0;
          }
        }
      }
    }
    unsigned weights[Atoms][Keys / 16][4];
    pack_weights(weights, scores);
    const bf16* values = value_tiles + buffer * Keys * tile_stride<D>;
    if (on_diagonal) {
      add_visible_rows<D, Atoms, Keys / 16, false>(sums, weights, values, warp_query, first_key);
    } else {
      add_weighted_rows<D>(sums, weights, values);
    }
  }

  const int lane = threadIdx.x % 32;
  float factors[Atoms][2];
#pragma unroll
  for (int a = 0; a < Atoms; ++a) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_of_quad(total[a][half]);
      factors[a][half] = task.dropout.kept / sum;
      const int query = warp_query + 16 * a + 8 * half + lane / 4;
      if (task.lse != nullptr && lane % 4 == 0 && query < task.tokens) {
        task.lse[static_cast<std::int64_t>(place.which) * task.tokens + query] =
            (maximum[a][half] * log2_scale + log2f(sum)) * ln_of_2;
      }
    }
  }
  // Only this warp reads its rows of the queries: they can go.
  store_rows<D>(sums, factors, warp_rows, out_rows_of(task, place, warp_query), task.out_stride,
                task.tokens - warp_query, task.size);
}

}  // namespace greyhound::cuda
