// Attention's backward on tensor cores. With P = exp(S - lse), f the factor of dropout and D = sum_d grad_out * out:
//   grad_v = (P f)^T grad_out;   dS = P (f (grad_out v^T) - D);   grad_k = scale dS^T q;   grad_q = scale dS k
// as in T. Dao, "FlashAttention-2", 2023. One kernel walks, for each tile of keys, along the queries, another, for each
// tile of queries, along the keys: weights are made twice, seven products for five, but every sum has one owner and one
// order, with nothing added up between blocks. Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/cuda/attention_forward.cuh>

namespace greyhound::cuda {

template <int head_columns, int atoms, int warps, int steps, int blocks>
struct BackwardTiling {
  static constexpr int D = head_columns;
  static constexpr int Atoms = atoms;  // 16 rows each, of a warp: keys in one kernel, queries in the other
  static constexpr int Warps = warps;
  static constexpr int Step = steps;     // rows of the tiles that are walked along
  static constexpr int Blocks = blocks;  // at least so many on a multiprocessor at once
  static constexpr int Rows = Warps * Atoms * 16;
  static constexpr int Threads = Warps * 32;
  static constexpr int tile_bytes = (2 * Rows + 4 * Step) * tile_stride<D> * 2;
  static constexpr int shared_bytes_of_keys = tile_bytes + 4 * Step * 4;
  static constexpr int shared_bytes_of_queries = tile_bytes;
  static_assert(Rows % Step == 0 && Step % 16 == 0 && 2 * Step <= Threads,
                "tiles of queries begin where tiles of keys do; one thread copies one value of a row");
};

using KeyGrads64 = BackwardTiling<64, 2, 4, 32, 2>;
using KeyGrads128 = BackwardTiling<128, 1, 4, 32, 2>;
using QueryGrads64 = BackwardTiling<64, 2, 4, 32, 3>;
using QueryGrads128 = BackwardTiling<128, 1, 4, 32, 3>;

// As words_of_queries, for 16 x 8 [keys, queries]. Here a block of words belongs to four lanes, whose rows are four
// neighbouring keys, and each of them holds four elements of four blocks: each draws one.
template <class T>
__device__ inline void words_of_keys(unsigned (&words)[4], const AttentionTask<T>& task, const Place& place, int query,
                                     int key) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, mine = g % 4;
  transpose_words<4>(words, dropout_words(task, place, query + 2 * t + mine % 2, (key + mine / 2 * 8) / 4 + g / 4),
                     mine);
}

// One element: score -> P f / kept (kept comes last, over the whole sum), grad_out v^T -> dS.
template <bool WithDropout>
__device__ inline void differentiate(float& score, float& grad, float log2_scale, float log2_lse, float row_dot,
                                     bool hidden, bool dropped, float kept) {
  const float p = hidden ? 0.0f : fast_exp2(fmaf(score, log2_scale, -log2_lse));
  if (WithDropout) {
    grad = hidden ? 0.0f : p * ((dropped ? 0.0f : grad * kept) - row_dot);
    score = dropped ? 0.0f : p;
  } else {
    grad = hidden ? 0.0f : p * (grad - row_dot);
    score = p;
  }
}

// grad_k and grad_v.
template <class Tiling, bool WithDropout>
__global__ void __launch_bounds__(Tiling::Threads, Tiling::Blocks)
    attention_key_grads_kernel(const __grid_constant__ AttentionTask<bf16> task, int blocks_per_head) {
  constexpr int D = Tiling::D, Atoms = Tiling::Atoms, Keys = Tiling::Rows, Queries = Tiling::Step;
  extern __shared__ __align__(128) unsigned char attention_memory[];
  bf16* const key_tile = reinterpret_cast<bf16*>(attention_memory);
  bf16* const value_tile = key_tile + Keys * tile_stride<D>;
  bf16* const query_tiles = value_tile + Keys * tile_stride<D>;
  bf16* const grad_tiles = query_tiles + 2 * Queries * tile_stride<D>;
  float* const row_values = reinterpret_cast<float*>(grad_tiles + 2 * Queries * tile_stride<D>);  // [2][lse, dots]

  const Place place = place_of(task, blockIdx.x, blocks_per_head);
  const int first_key = place.order * Keys;  // the first keys are seen by most queries
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int warp_key = first_key + warp * Atoms * 16;
  const int warp_offset = warp * Atoms * 16 * tile_stride<D>;

  const auto load_queries = [&](int tile, int buffer) {
    const int first = tile * Queries, rows = task.tokens - first;
    load_tile<D, Queries, Tiling::Threads>(query_tiles + buffer * Queries * tile_stride<D>,
                                           rows_of(task, place, 0, first), task.qkv_stride, rows, task.size);
    load_tile<D, Queries, Tiling::Threads>(grad_tiles + buffer * Queries * tile_stride<D>,
                                           grad_out_rows_of(task, place, first), task.grad_out_stride, rows, task.size);
    if (threadIdx.x < 2 * Queries) {
      const int row = static_cast<int>(threadIdx.x) % Queries;
      const float* values = threadIdx.x < Queries ? task.lse : task.row_dots;
      values += static_cast<std::int64_t>(place.which) * task.tokens + first;
      copy_async_4(row_values + buffer * 2 * Queries + threadIdx.x, row < rows ? values + row : values, row < rows);
    }
  };
  load_tile<D, Keys, Tiling::Threads>(key_tile, rows_of(task, place, 1, first_key), task.qkv_stride,
                                      task.tokens - first_key, task.size);
  load_tile<D, Keys, Tiling::Threads>(value_tile, rows_of(task, place, 2, first_key), task.qkv_stride,
                                      task.tokens - first_key, task.size);
  const int tiles = (task.tokens + Queries - 1) / Queries;
  int tile = first_key / Queries, buffer = 0;
  load_queries(tile, buffer);

  float key_sums[Atoms][D / 8][4], value_sums[Atoms][D / 8][4];
#pragma unroll
  for (int a = 0; a < Atoms; ++a) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) key_sums[a][n][e] = value_sums[a][n][e] = 0;
    }
  }
  const float log2_scale = task.scale * log2_of_e;

  for (; tile < tiles; ++tile, buffer ^= 1) {
    wait_for_copies();
    __syncthreads();
    if (tile + 1 < tiles) load_queries(tile + 1, buffer ^ 1);
    const int first_query = tile * Queries;
    if (first_query + Queries <= warp_key) continue;

    const bf16* queries = query_tiles + buffer * Queries * tile_stride<D>;
    const bf16* grads_out = grad_tiles + buffer * Queries * tile_stride<D>;
    const float* lse = row_values + buffer * 2 * Queries;
    const float* dots = lse + Queries;
    float scores[Atoms][Queries / 8][4], grads[Atoms][Queries / 8][4];
    multiply_rows<D>(scores, key_tile + warp_offset, queries);
    multiply_rows<D>(grads, value_tile + warp_offset, grads_out);

    const bool on_diagonal = first_query < warp_key + Atoms * 16;
    const bool at_edge = on_diagonal || first_query + Queries > task.tokens;
#pragma unroll
    for (int b = 0; b < Queries / 8; ++b) {
      const float2 lse_pair = *reinterpret_cast<const float2*>(lse + 8 * b + 2 * t);
      const float2 dot_pair = *reinterpret_cast<const float2*>(dots + 8 * b + 2 * t);
#pragma unroll
      for (int a = 0; a < Atoms; ++a) {
        unsigned words[4] = {};
        if (WithDropout) words_of_keys(words, task, place, first_query + 8 * b, warp_key + 16 * a);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int query = first_query + 8 * b + 2 * t + e % 2, key = warp_key + 16 * a + g + e / 2 * 8;
          const bool hidden = at_edge && (key > query || query >= task.tokens);
          differentiate<WithDropout>(
              scores[a][b][e], grads[a][b][e], log2_scale, (e % 2 == 0 ? lse_pair.x : lse_pair.y) * log2_of_e,
              e % 2 == 0 ? dot_pair.x : dot_pair.y, hidden, words[e] < task.dropout.threshold, task.dropout.kept);
        }
      }
    }
    unsigned weights[Atoms][Queries / 16][4];
    pack_weights(weights, scores);
    if (on_diagonal) {
      add_visible_rows<D, Atoms, Queries / 16, true>(value_sums, weights, grads_out, warp_key, first_query);
    } else {
      add_weighted_rows<D>(value_sums, weights, grads_out);
    }
    pack_weights(weights, grads);
    if (on_diagonal) {
      add_visible_rows<D, Atoms, Queries / 16, true>(key_sums, weights, queries, warp_key, first_query);
    } else {
      add_weighted_rows<D>(key_sums, weights, queries);
    }
  }

  float factors[Atoms][2];
#pragma unroll
  for (int a = 0; a < Atoms; ++a) factors[a][0] = factors[a][1] = task.scale;
  store_rows<D>(key_sums, factors, key_tile + warp_offset, grad_rows_of(task, place, 1, warp_key), task.grad_qkv_stride,
                task.tokens - warp_key, task.size);
#pragma unroll
  for (int a = 0; a < Atoms; ++a) factors[a][0] = factors[a][1] = task.dropout.kept;
  store_rows<D>(value_sums, factors, value_tile + warp_offset, grad_rows_of(task, place, 2, warp_key),
                task.grad_qkv_stride, task.tokens - warp_key, task.size);
}

// grad_q.
template <class Tiling, bool WithDropout>
__global__ void __launch_bounds__(Tiling::Threads, Tiling::Blocks)
    attention_query_grads_kernel(const __grid_constant__ AttentionTask<bf16> task, int blocks_per_head) {
  constexpr int D = Tiling::D, Atoms = Tiling::Atoms, Queries = Tiling::Rows, Keys = Tiling::Step;
  extern __shared__ __align__(128) unsigned char attention_memory[];
  bf16* const query_tile = reinterpret_cast<bf16*>(attention_memory);
  bf16* const grad_tile = query_tile + Queries * tile_stride<D>;
  bf16* const key_tiles = grad_tile + Queries * tile_stride<D>;
  bf16* const value_tiles = key_tiles + 2 * Keys * tile_stride<D>;

  const Place place = place_of(task, blockIdx.x, blocks_per_head);
  const int first_query = (blocks_per_head - 1 - place.order) * Queries;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int warp_query = first_query + warp * Atoms * 16;
  const int warp_offset = warp * Atoms * 16 * tile_stride<D>;

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
  load_tile<D, Queries, Tiling::Threads>(grad_tile, grad_out_rows_of(task, place, first_query), task.grad_out_stride,
                                         task.tokens - first_query, task.size);
  int tile = (min(first_query + Queries, task.tokens) - 1) / Keys, buffer = 0;
  load_keys(tile, buffer);

  float sums[Atoms][D / 8][4], log2_lse[Atoms][2], dots[Atoms][2];
#pragma unroll
  for (int a = 0; a < Atoms; ++a) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n) sums[a][n][0] = sums[a][n][1] = sums[a][n][2] = sums[a][n][3] = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = warp_query + 16 * a + 8 * half + g;
      const std::int64_t row = static_cast<std::int64_t>(place.which) * task.tokens + query;
      log2_lse[a][half] = query < task.tokens ? task.lse[row] * log2_of_e : 0;
      dots[a][half] = query < task.tokens ? task.row_dots[row] : 0;
    }
  }
  const float log2_scale = task.scale * log2_of_e;

  for (; tile >= 0; --tile, buffer ^= 1) {
    wait_for_copies();
    __syncthreads();
    if (tile > 0) load_keys(tile - 1, buffer ^ 1);
    const int first_key = tile * Keys;
    if (first_key >= warp_query + Atoms * 16) continue;

    const bf16* keys = key_tiles + buffer * Keys * tile_stride<D>;
    float scores[Atoms][Keys / 8][4], grads[Atoms][Keys / 8][4];
    multiply_rows<D>(scores, query_tile + warp_offset, keys);
    multiply_rows<D>(grads, grad_tile + warp_offset, value_tiles + buffer * Keys * tile_stride<D>);
    const bool on_diagonal = first_key + Keys > warp_query;
#pragma unroll
    for (int a = 0; a < Atoms; ++a) {
#pragma unroll
      for (int b = 0; b < Keys / 8; ++b) {
        unsigned words[4] = {};
        if (WithDropout) words_of_queries(words, task, place, warp_query + 16 * a, first_key + 8 * b);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int key = first_key + 8 * b + 2 * t + e % 2, query = warp_query + 16 * a + g + e / 2 * 8;
          differentiate<WithDropout>(scores[a][b][e], grads[a][b][e], log2_scale, log2_lse[a][e / 2], dots[a][e / 2],
                                     on_diagonal && key > query, words[e] < task.dropout.threshold, task.dropout.kept);
        }
      }
    }
    unsigned weights[Atoms][Keys / 16][4];
    pack_weights(weights, grads);
    if (on_diagonal) {
      add_visible_rows<D, Atoms, Keys / 16, false>(sums, weights, keys, warp_query, first_key);
    } else {
      add_weighted_rows<D>(sums, weights, keys);
    }
  }

  float factors[Atoms][2];
#pragma unroll
  for (int a = 0; a < Atoms; ++a) factors[a][0] = factors[a][1] = task.scale;
  store_rows<D>(sums, factors, query_tile + warp_offset, grad_rows_of(task, place, 0, warp_query), task.grad_qkv_stride,
                task.tokens - warp_query, task.size);
}

}  // namespace greyhound::cuda
