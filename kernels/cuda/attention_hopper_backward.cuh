// Attention's backward with Hopper's instructions; formulas and division of work as in attention_backward.cuh. The
// kernel of the queries comes first: it makes the row values that the kernel of the keys reads. Internal to the CUDA
// backend.
#pragma once

#include <greyhound/kernels/cuda/attention_forward.cuh>
#include <greyhound/kernels/cuda/attention_hopper.cuh>

namespace greyhound::cuda::hopper {

using QueryGrads64 = Tiling<64, 1, 64, 3, 3>;
using QueryGrads128 = Tiling<128, 2, 64, 3, 1>;
using KeyGrads64 = Tiling<64, 1, 64, 3, 2, true>;
using KeyGrads128 = Tiling<128, 2, 64, 3, 1>;

// grad_q, and the row values [all_heads, blocks of 64 tokens].
template <class Tiling>
__global__ void __launch_bounds__(Tiling::Threads, Tiling::Blocks)
    attention_query_grads_kernel(const __grid_constant__ AttentionTask<bf16> task,
                                 const __grid_constant__ AttentionMaps maps, RowValues* row_values,
                                 int blocks_per_head) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int D = Tiling::D, Keys = Tiling::Step, Stages = Tiling::Stages;
  constexpr unsigned group_bytes = Tiling::group_tile_bytes, step_bytes = Tiling::step_tile_bytes;
  extern __shared__ unsigned char unaligned_memory[];
  __shared__ Ring<Stages> ring;
  __shared__ Barrier queries_ready;
  __shared__ ZeroRows zeros;
  unsigned char* const memory = aligned_memory(unaligned_memory);
  unsigned char* const key_tiles = memory + Tiling::Groups * 2 * group_bytes;

  const Place place = place_of(task, blockIdx.x, blocks_per_head);
  const int first_query = (blocks_per_head - 1 - place.order) * Tiling::Rows;  // the last queries see most keys
  const int groups = min(Tiling::Groups, (task.tokens - first_query + group_rows - 1) / group_rows);
  const int first_tile = (first_query + (groups - 1) * group_rows) / Keys, tiles = first_tile + 1;

  const auto load_keys = [&](int i) {
    if (i >= tiles) return;
    Barrier& full = ring.full[i % Stages];
    unsigned char* const to = key_tiles + i % Stages * 2 * step_bytes;
    arrive_expecting(full, 2 * step_bytes);
    load_tile<D, Keys>(to, maps.qkv, task.heads + place.head, (first_tile - i) * Keys, place.batch, full);
    load_tile<D, Keys>(to + step_bytes, maps.qkv, 2 * task.heads + place.head, (first_tile - i) * Keys, place.batch,
                       full);
  };
  zeros.initialize_all();
  if (threadIdx.x == 0) {
    ring.initialize_all();
    initialize(queries_ready, 1);
    publish_barriers();
    arrive_expecting(queries_ready, static_cast<unsigned>(groups) * 2 * group_bytes);
    for (int group = 0; group < groups; ++group) {
      const int row = first_query + group * group_rows;
      unsigned char* const to = memory + group * 2 * group_bytes;
      load_tile<D, group_rows>(to, maps.qkv, place.head, row, place.batch, queries_ready);
      load_tile<D, group_rows>(to + group_bytes, maps.grad_out, place.head, row, place.batch, queries_ready);
    }
#pragma unroll 1
    for (int i = 0; i < Stages; ++i) load_keys(i);
  }
  __syncthreads();

  const int group = __shfl_sync(full_warp, static_cast<int>(threadIdx.x) / group_threads, 0);
  if (group >= groups) return;
  const int readers = groups * 4;
  const int group_query = first_query + group * group_rows;
  unsigned char* const query_tile = memory + group * 2 * group_bytes;
  unsigned char* const grad_tile = query_tile + group_bytes;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int query = group_query + static_cast<int>(threadIdx.x) % group_threads / 32 * 16 + g;
  const float log2_scale = task.scale * log2_of_e;

  float log2_lse[2], dots[2];
  const int value_blocks = (task.tokens + RowValues::rows - 1) / RowValues::rows;
  RowValues& values = row_values[static_cast<std::int64_t>(place.which) * value_blocks + group_query / RowValues::rows];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = query + 8 * half;
    const bool valid = row < task.tokens;
    float dot = 0;
    if (valid) dot = part_of_dot(out_rows_of(task, place, row), grad_out_rows_of(task, place, row), task.size);
    dots[half] = sum_of_quad(dot);
    log2_lse[half] =
        valid ? task.lse[static_cast<std::int64_t>(place.which) * task.tokens + row] * log2_of_e : INFINITY;
    if (t == 0) {
      values.log2_lse[row % RowValues::rows] = log2_lse[half];
      values.dots[row % RowValues::rows] = dots[half];
    }
  }

  float scores[Keys / 8][4], grads[Keys / 8][4], sums[D / 8][4];
#pragma unroll
  for (int n = 0; n < D / 8; ++n) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
  unsigned queries_left[Tiling::LeftInRegisters ? D / 16 : 1][4], grads_left[Tiling::LeftInRegisters ? D / 16 : 1][4];

  int i = first_tile - group_query / Keys;  // tiles before it hold later keys only
  ring.pass_over(i, readers, load_keys);
  wait(queries_ready, 0);
  if constexpr (Tiling::LeftInRegisters) {
    load_left<D>(queries_left, query_tile);
    load_left<D>(grads_left, grad_tile);
  }

  const auto multiply_keys = [&](int tile) {
    ring.wait_for(tile);
    fence_products();
    const Descriptor keys = describe(key_tiles + tile % Stages * 2 * step_bytes, 0);
    const Descriptor values = advance(keys, step_bytes);
    if constexpr (Tiling::LeftInRegisters) {
      multiply_rows_async<D, Keys>(scores, queries_left, keys);
      commit_products();
      fence_products();
      multiply_rows_async<D, Keys>(grads, grads_left, values);
    } else {
      multiply_rows_async<D, Keys>(scores, describe(query_tile, 0), keys);
      commit_products();
      fence_products();
      multiply_rows_async<D, Keys>(grads, describe(grad_tile, 0), values);
    }
    commit_products();
  };
  bool one_by_one = false;
  const auto work = [&](auto tile) {
    constexpr bool on_diagonal = decltype(tile)::value;
    if constexpr (on_diagonal) {
      wait_for_products<0>();
      hold(sums);
    } else {
      wait_for_products<1>();
    }
    hold(scores);
    const int first_key = (first_tile - i) * Keys;
#pragma unroll
    for (int b = 0; b < Keys / 8; ++b) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[b][e] = fast_exp2(fmaf(scores[b][e], log2_scale, -log2_lse[e / 2]));
    }
    wait_for_products<0>();
    hold(grads);
#pragma unroll
    for (int b = 0; b < Keys / 8; ++b) {
#pragma unroll
      for (int e = 0; e < 4; ++e) grads[b][e] = scores[b][e] * (grads[b][e] - dots[e / 2]);
    }
    if constexpr (on_diagonal) {
#pragma unroll
      for (int b = 0; b < Keys / 8; ++b) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (first_key + 8 * b + 2 * t + e % 2 > query + e / 2 * 8) grads[b][e] = 0;
        }
      }
    }
    unsigned weights[Keys / 16][4];
    pack_left(weights, grads);
    const unsigned char* const keys = key_tiles + i % Stages * 2 * step_bytes;
    if constexpr (on_diagonal) {
      one_by_one = any_in_group(group, has_non_finite_rows<D, Keys>(keys));
      add_diagonal_rows_async<D>(sums, weights, keys, zeros, one_by_one);
    } else {
      hold(weights);
      fence_products();
      add_weighted_rows_async<D>(sums, weights, describe(keys, Keys * row_bytes));
    }
    commit_products();
    if constexpr (!on_diagonal) ring.release(i - 1, readers, load_keys);
  };
  multiply_keys(i);
  work(std::true_type{});
#pragma unroll 1
  while (++i < tiles) {
    multiply_keys(i);
    work(std::false_type{});
  }
  wait_for_products<0>();
  hold(sums);
  if (one_by_one) {
    const int first_key = group_query / Keys * Keys;
#pragma unroll 1
    for (int key = first_key; key < min(first_key + Keys, task.tokens); ++key) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = query - group_query + 8 * half;
        const float score = row_product<D>(query_tile, row, rows_of(task, place, 1, key), task.size);
        const float grad = row_product<D>(grad_tile, row, rows_of(task, place, 2, key), task.size);
        const float weight = fast_exp2(fmaf(score, log2_scale, -log2_lse[half])) * (grad - dots[half]);
        if (key <= query + 8 * half) add_row<D>(sums, half, weight, rows_of(task, place, 1, key), task.size);
      }
    }
  }
  store_tile<D>(sums, task.scale, task.scale, query_tile, group, maps.grad_qkv, place.head, group_query, place.batch);
#endif
}

// grad_k and grad_v.
template <class Tiling>
__global__ void __launch_bounds__(Tiling::Threads, Tiling::Blocks)
    attention_key_grads_kernel(const __grid_constant__ AttentionTask<bf16> task,
                               const __grid_constant__ AttentionMaps maps, const RowValues* row_values,
                               int blocks_per_head) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int D = Tiling::D, Queries = Tiling::Step, Stages = Tiling::Stages;
  static_assert(Queries == RowValues::rows, "row values end where tiles of queries do");
  constexpr unsigned group_bytes = Tiling::group_tile_bytes, step_bytes = Tiling::step_tile_bytes;
  extern __shared__ unsigned char unaligned_memory[];
  __shared__ Ring<Stages> ring;
  __shared__ Barrier keys_ready;
  __shared__ ZeroRows zeros;
  __shared__ __align__(16) RowValues stage_values[Stages];
  unsigned char* const memory = aligned_memory(unaligned_memory);
  unsigned char* const query_tiles = memory + Tiling::Groups * 2 * group_bytes;

  const Place place = place_of(task, blockIdx.x, blocks_per_head);
  const int first_key = place.order * Tiling::Rows;  // the first keys are seen by most queries
  const int groups = min(Tiling::Groups, (task.tokens - first_key + group_rows - 1) / group_rows);
  const int all_tiles = (task.tokens + Queries - 1) / Queries;
  const int first_tile = first_key / Queries, tiles = all_tiles - first_tile;
  const RowValues* const values_from = row_values + static_cast<std::int64_t>(place.which) * all_tiles + first_tile;

  const auto load_queries = [&](int i) {
    if (i >= tiles) return;
    const int stage = i % Stages, row = (first_tile + i) * Queries;
    Barrier& full = ring.full[stage];
    unsigned char* const to = query_tiles + stage * 2 * step_bytes;
    arrive_expecting(full, 2 * step_bytes + sizeof(RowValues));
    load_tile<D, Queries>(to, maps.qkv, place.head, row, place.batch, full);
    load_tile<D, Queries>(to + step_bytes, maps.grad_out, place.head, row, place.batch, full);
    copy_to_shared(&stage_values[stage], values_from + i, sizeof(RowValues), full);
  };
  zeros.initialize_all();
  if (threadIdx.x == 0) {
    ring.initialize_all();
    initialize(keys_ready, 1);
    publish_barriers();
    arrive_expecting(keys_ready, static_cast<unsigned>(groups) * 2 * group_bytes);
    for (int group = 0; group < groups; ++group) {
      const int row = first_key + group * group_rows;
      unsigned char* const to = memory + group * 2 * group_bytes;
      load_tile<D, group_rows>(to, maps.qkv, task.heads + place.head, row, place.batch, keys_ready);
      load_tile<D, group_rows>(to + group_bytes, maps.qkv, 2 * task.heads + place.head, row, place.batch, keys_ready);
    }
#pragma unroll 1
    for (int i = 0; i < Stages; ++i) load_queries(i);
  }
  __syncthreads();

  const int group = __shfl_sync(full_warp, static_cast<int>(threadIdx.x) / group_threads, 0);
  if (group >= groups) return;
  const int readers = groups * 4;
  const int group_key = first_key + group * group_rows;
  unsigned char* const key_tile = memory + group * 2 * group_bytes;
  unsigned char* const value_tile = key_tile + group_bytes;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int key = group_key + static_cast<int>(threadIdx.x) % group_threads / 32 * 16 + g;
  const float log2_scale = task.scale * log2_of_e;

  float scores[Queries / 8][4], grads[Queries / 8][4], key_sums[D / 8][4], value_sums[D / 8][4];
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) key_sums[n][e] = value_sums[n][e] = 0;
  }
  unsigned keys_left[Tiling::LeftInRegisters ? D / 16 : 1][4], values_left[Tiling::LeftInRegisters ? D / 16 : 1][4];

  int i = group_key / Queries - first_tile;  // tiles before it hold earlier queries only
  ring.pass_over(i, readers, load_queries);
  wait(keys_ready, 0);
  if constexpr (Tiling::LeftInRegisters) {
    load_left<D>(keys_left, key_tile);
    load_left<D>(values_left, value_tile);
  }

  const auto multiply_queries = [&](int tile) {
    ring.wait_for(tile);
    fence_products();
    const Descriptor queries = describe(query_tiles + tile % Stages * 2 * step_bytes, 0);
    const Descriptor grads_out = advance(queries, step_bytes);
    if constexpr (Tiling::LeftInRegisters) {
      multiply_rows_async<D, Queries>(scores, keys_left, queries);
      commit_products();
      fence_products();
      multiply_rows_async<D, Queries>(grads, values_left, grads_out);
    } else {
      multiply_rows_async<D, Queries>(scores, describe(key_tile, 0), queries);
      commit_products();
      fence_products();
      multiply_rows_async<D, Queries>(grads, describe(value_tile, 0), grads_out);
    }
    commit_products();
  };
  bool one_by_one = false;
  const auto work = [&](auto tile) {
    constexpr bool on_diagonal = decltype(tile)::value;
    if constexpr (on_diagonal) {
      wait_for_products<0>();
      hold(key_sums);
      hold(value_sums);
    } else {
      wait_for_products<1>();
    }
    hold(scores);
    const unsigned char* const queries = query_tiles + i % Stages * 2 * step_bytes;
    const unsigned char* const grads_out = queries + step_bytes;
    const RowValues& values = stage_values[i % Stages];
    const int first_query = (first_tile + i) * Queries;
#pragma unroll
    for (int b = 0; b < Queries / 8; ++b) {
      const float2 lse = *reinterpret_cast<const float2*>(values.log2_lse + 8 * b + 2 * t);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        scores[b][e] = fast_exp2(fmaf(scores[b][e], log2_scale, -(e % 2 == 0 ? lse.x : lse.y)));
    }
    const auto hide = [&](float(&elements)[Queries / 8][4]) {
#pragma unroll
      for (int b = 0; b < Queries / 8; ++b) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (first_query + 8 * b + 2 * t + e % 2 < key + e / 2 * 8) elements[b][e] = 0;
        }
      }
    };
    if constexpr (on_diagonal) {
      hide(scores);
      one_by_one =
          any_in_group(group, has_non_finite_rows<D, Queries>(queries) || has_non_finite_rows<D, Queries>(grads_out));
    }
    unsigned weights[Queries / 16][4];
    pack_left(weights, scores);
    if constexpr (on_diagonal) {
      add_diagonal_rows_async<D>(value_sums, weights, grads_out, zeros, one_by_one);
    } else {
      hold(weights);
      fence_products();
      add_weighted_rows_async<D>(value_sums, weights, describe(grads_out, Queries * row_bytes));
    }
    commit_products();
    wait_for_products<1>();
    hold(grads);
#pragma unroll
    for (int b = 0; b < Queries / 8; ++b) {
      const float2 dots = *reinterpret_cast<const float2*>(values.dots + 8 * b + 2 * t);
#pragma unroll
      for (int e = 0; e < 4; ++e) grads[b][e] = scores[b][e] * (grads[b][e] - (e % 2 == 0 ? dots.x : dots.y));
    }
    if constexpr (on_diagonal) hide(grads);
    unsigned grad_weights[Queries / 16][4];
    pack_left(grad_weights, grads);
    if constexpr (on_diagonal) {
      add_diagonal_rows_async<D>(key_sums, grad_weights, queries, zeros, one_by_one);
    } else {
      hold(grad_weights);
      fence_products();
      add_weighted_rows_async<D>(key_sums, grad_weights, describe(queries, Queries * row_bytes));
    }
    commit_products();
    if constexpr (!on_diagonal) ring.release(i - 1, readers, load_queries);
  };
  multiply_queries(i);
  work(std::true_type{});
#pragma unroll 1
  while (++i < tiles) {
    wait_for_products<1>();  // the weights' registers are free
    multiply_queries(i);
    work(std::false_type{});
  }
  wait_for_products<0>();
  hold(key_sums);
  hold(value_sums);
  if (one_by_one) {
    const RowValues& values = values_from[group_key / Queries - first_tile];
#pragma unroll 1
    for (int query = group_key; query < min(group_key + Queries, task.tokens); ++query) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = key - group_key + 8 * half;
        const bf16* const query_row = rows_of(task, place, 0, query);
        const bf16* const grad_row = grad_out_rows_of(task, place, query);
        const float score = row_product<D>(key_tile, row, query_row, task.size);
        const float grad = row_product<D>(value_tile, row, grad_row, task.size);
        const float weight = fast_exp2(fmaf(score, log2_scale, -values.log2_lse[query - group_key]));
        if (key + 8 * half <= query) {
          add_row<D>(value_sums, half, weight, grad_row, task.size);
          add_row<D>(key_sums, half, weight * (grad - values.dots[query - group_key]), query_row, task.size);
        }
      }
    }
  }
  store_tile<D>(key_sums, task.scale, task.scale, key_tile, group, maps.grad_qkv, task.heads + place.head, group_key,
                place.batch);
  store_tile<D>(value_sums, 1.0f, 1.0f, value_tile, group, maps.grad_qkv, 2 * task.heads + place.head, group_key,
                place.batch);
#endif
}

}  // namespace greyhound::cuda::hopper
