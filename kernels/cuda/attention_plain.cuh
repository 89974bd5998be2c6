// Attention in fp32 arithmetic, without tensor cores: for fp32, and for bf16 rows that cannot be read 16 bytes at a
// time. What the kernels of attention_forward.cuh and attention_backward.cuh are measured by. Internal to the CUDA
// backend.
//
// A block has a tile of 32 rows and walks along tiles of 32 others. Four neighbouring lanes (a quad) own a row: the
// product with a tile's row 4 j + quad lane, and columns 4 (4 i + quad lane) .. of the sums. Sums leave out what lies
// behind the diagonal, so that a NaN there stays there.
#pragma once

#include <greyhound/kernels/cuda/attention_task.cuh>
#include <greyhound/kernels/cuda/packed.cuh>

#include <cmath>

namespace greyhound::cuda {

inline constexpr int plain_rows = 32;
inline constexpr int plain_threads = 128;
inline constexpr int plain_products = plain_rows / 4;  // of one lane
inline constexpr int plain_weight_stride = plain_rows + 1;

template <int D>
inline constexpr int plain_stride = D + 4;  // rows of four lanes' 16-byte accesses lie in different banks
// Four tiles and two matrices of weights; forward uses less.
template <int D>
inline constexpr int plain_shared_bytes = (4 * plain_rows * plain_stride<D> + 2 * plain_rows * plain_weight_stride) * 4;

template <int D, class T>
__device__ inline void load_plain_tile(float* tile, const T* from, std::int64_t stride, int rows, int size,
                                       float scale = 1) {
  for (int i = threadIdx.x; i < plain_rows * D; i += plain_threads) {
    const int row = i / D, column = i % D;
    tile[row * plain_stride<D> + column] =
        row < rows && column < size ? scale * widen(from[row * stride + column]) : 0.0f;
  }
}

// products[j] = left . row 4 j + quad_lane of the tile.
template <int D>
__device__ inline void dot_rows(float (&products)[plain_products], const float* left, const float* tile,
                                int quad_lane) {
#pragma unroll
  for (int j = 0; j < plain_products; ++j) products[j] = 0;
#pragma unroll 4
  for (int d = 0; d < D; d += 4) {
    const float4 l = *reinterpret_cast<const float4*>(left + d);
#pragma unroll
    for (int j = 0; j < plain_products; ++j) {
      const float4 r = *reinterpret_cast<const float4*>(tile + (4 * j + quad_lane) * plain_stride<D> + d);
      products[j] = fmaf(l.x, r.x, fmaf(l.y, r.y, fmaf(l.z, r.z, fmaf(l.w, r.w, products[j]))));
    }
  }
}

// sums += weights[k] * row k of the tile, for k in [first, end).
template <int D>
__device__ inline void add_rows(float (&sums)[D / 16][4], const float* weights, const float* tile, int first, int end,
                                int quad_lane) {
  for (int k = first; k < end; ++k) {
    const float weight = weights[k];
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const float4 v = *reinterpret_cast<const float4*>(tile + k * plain_stride<D> + 4 * (4 * i + quad_lane));
      sums[i][0] = fmaf(weight, v.x, sums[i][0]);
      sums[i][1] = fmaf(weight, v.y, sums[i][1]);
      sums[i][2] = fmaf(weight, v.z, sums[i][2]);
      sums[i][3] = fmaf(weight, v.w, sums[i][3]);
    }
  }
}

template <int D, class T>
__device__ inline void store_plain_row(T* to, const float (&sums)[D / 16][4], float factor, int size, int quad_lane) {
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int column = 4 * (4 * i + quad_lane) + e;
      if (column < size) to[column] = narrow<T>(sums[i][e] * factor);
    }
  }
}

template <int D>
__device__ inline void clear(float (&sums)[D / 16][4]) {
#pragma unroll
  for (int i = 0; i < D / 16; ++i) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0;
}

// Bit j: dropout drops key first_key + 4 j + quad_lane for this query.
template <class T>
__device__ inline unsigned dropped_keys(const AttentionTask<T>& task, const Place& place, int query, int first_key,
                                        int quad_lane) {
  unsigned dropped = 0;
  if (task.dropout.threshold == 0) return dropped;
#pragma unroll
  for (int part = 0; part < plain_products / 4; ++part) {
    unsigned words[4];
    transpose_words<1>(words, dropout_words(task, place, query, first_key / 4 + 4 * part + quad_lane), quad_lane);
#pragma unroll
    for (int e = 0; e < 4; ++e) dropped |= (words[e] < task.dropout.threshold ? 1u : 0u) << (4 * part + e);
  }
  return dropped;
}
// Bit j: dropout drops this key for query first_query + 4 j + quad_lane. Four neighbouring keys share blocks of words.
template <class T>
__device__ inline unsigned dropped_queries(const AttentionTask<T>& task, const Place& place, int first_query, int key,
                                           int quad_lane) {
  unsigned dropped = 0;
  if (task.dropout.threshold == 0) return dropped;
#pragma unroll
  for (int part = 0; part < plain_products / 4; ++part) {
    unsigned words[4];
    const int query = first_query + 4 * (4 * part + key % 4) + quad_lane;
    transpose_words<4>(words, dropout_words(task, place, query, key / 4), key % 4);
#pragma unroll
    for (int e = 0; e < 4; ++e) dropped |= (words[e] < task.dropout.threshold ? 1u : 0u) << (4 * part + e);
  }
  return dropped;
}

template <class T, int D>
__global__ void __launch_bounds__(plain_threads)
    plain_forward_kernel(const __grid_constant__ AttentionTask<T> task, int blocks_per_head) {
  constexpr unsigned full_warp = 0xffffffffu;
  extern __shared__ __align__(128) unsigned char attention_memory[];
  float* const query_tile = reinterpret_cast<float*>(attention_memory);
  float* const key_tile = query_tile + plain_rows * plain_stride<D>;
  float* const value_tile = key_tile + plain_rows * plain_stride<D>;
  const int row = threadIdx.x / 4, quad_lane = threadIdx.x % 4;
  float* const weights = value_tile + plain_rows * plain_stride<D> + row * plain_weight_stride;

  const Place place = place_of(task, blockIdx.x, blocks_per_head);
  const int first_query = (blocks_per_head - 1 - place.order) * plain_rows, query = first_query + row;
  load_plain_tile<D>(query_tile, rows_of(task, place, 0, first_query), task.qkv_stride, task.tokens - first_query,
                     task.size, task.scale);
  float sums[D / 16][4], maximum = -INFINITY, total = 0;
  clear<D>(sums);
  for (int first_key = 0; first_key <= first_query; first_key += plain_rows) {
    __syncthreads();
    load_plain_tile<D>(key_tile, rows_of(task, place, 1, first_key), task.qkv_stride, task.tokens - first_key,
                       task.size);
    load_plain_tile<D>(value_tile, rows_of(task, place, 2, first_key), task.qkv_stride, task.tokens - first_key,
                       task.size);
    __syncthreads();
    float scores[plain_products];
    dot_rows<D>(scores, query_tile + row * plain_stride<D>, key_tile, quad_lane);
    float most = maximum;
#pragma unroll
    for (int j = 0; j < plain_products; ++j) {
      if (first_key + 4 * j + quad_lane > query) scores[j] = -INFINITY;
      most = fmaxf(most, scores[j]);
    }
    most = fmaxf(most, __shfl_xor_sync(full_warp, most, 1));
    most = fmaxf(most, __shfl_xor_sync(full_warp, most, 2));
    const float reference = most == -INFINITY ? 0.0f : most;
    const float correction = expf(maximum - reference);
    maximum = most;
    const unsigned dropped = dropped_keys(task, place, query, first_key, quad_lane);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < plain_products; ++j) {
      const float weight = expf(scores[j] - reference);
      sum += weight;
      weights[4 * j + quad_lane] = dropped >> j & 1u ? 0.0f : weight;
    }
    total = fmaf(total, correction, sum);
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[i][e] *= correction;
    }
    __syncwarp();
    add_rows<D>(sums, weights, value_tile, 0, min(plain_rows, query - first_key + 1), quad_lane);
    __syncwarp();
  }
  total += __shfl_xor_sync(full_warp, total, 1);
  total += __shfl_xor_sync(full_warp, total, 2);
  if (query >= task.tokens) return;
  store_plain_row<D>(out_rows_of(task, place, query), sums, task.dropout.kept / total, task.size, quad_lane);
  if (task.lse != nullptr && quad_lane == 0) {
    task.lse[static_cast<std::int64_t>(place.which) * task.tokens + query] = maximum + logf(total);
  }
}

// grad_k and grad_v; rows are keys. See attention_backward.cuh for the formulas.
template <class T, int D>
__global__ void __launch_bounds__(plain_threads)
    plain_key_grads_kernel(const __grid_constant__ AttentionTask<T> task, int blocks_per_head) {
  extern __shared__ __align__(128) unsigned char attention_memory[];
  constexpr int tile_floats = plain_rows * plain_stride<D>;
  float* const key_tile = reinterpret_cast<float*>(attention_memory);
  float* const value_tile = key_tile + tile_floats;
  float* const query_tile = value_tile + tile_floats;
  float* const grad_tile = query_tile + tile_floats;
  const int row = threadIdx.x / 4, quad_lane = threadIdx.x % 4;
  float* const weights = grad_tile + tile_floats + row * plain_weight_stride;
  float* const grad_weights = weights + plain_rows * plain_weight_stride;

  const Place place = place_of(task, blockIdx.x, blocks_per_head);
  const int first_key = place.order * plain_rows, key = first_key + row;
  const std::int64_t head_row = static_cast<std::int64_t>(place.which) * task.tokens;
  load_plain_tile<D>(key_tile, rows_of(task, place, 1, first_key), task.qkv_stride, task.tokens - first_key, task.size);
  load_plain_tile<D>(value_tile, rows_of(task, place, 2, first_key), task.qkv_stride, task.tokens - first_key,
                     task.size);
  float key_sums[D / 16][4], value_sums[D / 16][4];
  clear<D>(key_sums);
  clear<D>(value_sums);
  for (int first_query = first_key; first_query < task.tokens; first_query += plain_rows) {
    const int queries = min(plain_rows, task.tokens - first_query);
    __syncthreads();
    load_plain_tile<D>(query_tile, rows_of(task, place, 0, first_query), task.qkv_stride, queries, task.size,
                       task.scale);
    load_plain_tile<D>(grad_tile, grad_out_rows_of(task, place, first_query), task.grad_out_stride, queries, task.size);
    __syncthreads();
    float scores[plain_products], grads[plain_products];
    dot_rows<D>(scores, key_tile + row * plain_stride<D>, query_tile, quad_lane);
    dot_rows<D>(grads, value_tile + row * plain_stride<D>, grad_tile, quad_lane);
    const unsigned dropped = dropped_queries(task, place, first_query, key, quad_lane);
#pragma unroll
    for (int j = 0; j < plain_products; ++j) {
      const int column = 4 * j + quad_lane, query = first_query + column;
      const bool kept = (dropped >> j & 1u) == 0;
      float weight = 0, grad = 0;
      if (column < queries && key <= query) {
        weight = expf(scores[j] - task.lse[head_row + query]);
        grad = weight * ((kept ? grads[j] * task.dropout.kept : 0.0f) - task.row_dots[head_row + query]);
      }
      weights[column] = kept ? weight : 0.0f;
      grad_weights[column] = grad;
    }
    __syncwarp();
    const int first = max(0, key - first_query);
    add_rows<D>(value_sums, weights, grad_tile, first, queries, quad_lane);
    add_rows<D>(key_sums, grad_weights, query_tile, first, queries, quad_lane);
    __syncwarp();
  }
  if (key >= task.tokens) return;
  store_plain_row<D>(grad_rows_of(task, place, 1, key), key_sums, 1.0f, task.size, quad_lane);
  store_plain_row<D>(grad_rows_of(task, place, 2, key), value_sums, task.dropout.kept, task.size, quad_lane);
}

// grad_q; rows are queries.
template <class T, int D>
__global__ void __launch_bounds__(plain_threads)
    plain_query_grads_kernel(const __grid_constant__ AttentionTask<T> task, int blocks_per_head) {
  extern __shared__ __align__(128) unsigned char attention_memory[];
  constexpr int tile_floats = plain_rows * plain_stride<D>;
  float* const query_tile = reinterpret_cast<float*>(attention_memory);
  float* const grad_tile = query_tile + tile_floats;
  float* const key_tile = grad_tile + tile_floats;
  float* const value_tile = key_tile + tile_floats;
  const int row = threadIdx.x / 4, quad_lane = threadIdx.x % 4;
  float* const grad_weights = value_tile + tile_floats + row * plain_weight_stride;

  const Place place = place_of(task, blockIdx.x, blocks_per_head);
  const int first_query = (blocks_per_head - 1 - place.order) * plain_rows, query = first_query + row;
  const std::int64_t head_row = static_cast<std::int64_t>(place.which) * task.tokens;
  load_plain_tile<D>(query_tile, rows_of(task, place, 0, first_query), task.qkv_stride, task.tokens - first_query,
                     task.size, task.scale);
  load_plain_tile<D>(grad_tile, grad_out_rows_of(task, place, first_query), task.grad_out_stride,
                     task.tokens - first_query, task.size);
  const float lse = query < task.tokens ? task.lse[head_row + query] : 0;
  const float row_dot = query < task.tokens ? task.row_dots[head_row + query] : 0;
  float sums[D / 16][4];
  clear<D>(sums);
  for (int first_key = 0; first_key <= first_query; first_key += plain_rows) {
    __syncthreads();
    load_plain_tile<D>(key_tile, rows_of(task, place, 1, first_key), task.qkv_stride, task.tokens - first_key,
                       task.size);
    load_plain_tile<D>(value_tile, rows_of(task, place, 2, first_key), task.qkv_stride, task.tokens - first_key,
                       task.size);
    __syncthreads();
    float scores[plain_products], grads[plain_products];
    dot_rows<D>(scores, query_tile + row * plain_stride<D>, key_tile, quad_lane);
    dot_rows<D>(grads, grad_tile + row * plain_stride<D>, value_tile, quad_lane);
    const unsigned dropped = dropped_keys(task, place, query, first_key, quad_lane);
#pragma unroll
    for (int j = 0; j < plain_products; ++j) {
      const float weight = expf(scores[j] - lse);
      const float grad = (dropped >> j & 1u) != 0 ? 0.0f : grads[j] * task.dropout.kept;
      grad_weights[4 * j + quad_lane] = first_key + 4 * j + quad_lane > query ? 0.0f : weight * (grad - row_dot);
    }
    __syncwarp();
    add_rows<D>(sums, grad_weights, key_tile, 0, min(plain_rows, query - first_key + 1), quad_lane);
    __syncwarp();
  }
  if (query >= task.tokens) return;
  store_plain_row<D>(grad_rows_of(task, place, 0, query), sums, task.scale, task.size, quad_lane);
}

}  // namespace greyhound::cuda
