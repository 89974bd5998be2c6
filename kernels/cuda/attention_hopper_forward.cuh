// Attention's forward with Hopper's instructions. Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/cuda/attention_forward.cuh>
#include <greyhound/kernels/cuda/attention_hopper.cuh>

namespace greyhound::cuda::hopper {

// Scores to weights. As online_softmax of attention_forward.cuh, but rows keep their reference, the maximum of some
// tile before, until a score exceeds it by 2^8: sums are rescaled in few tiles, and no weight exceeds 2^8.
template <int D, int Blocks>
__device__ inline void weigh(float (&scores)[Blocks][4], float (&reference)[2], float (&total)[2],
                             float (&sums)[D / 8][4], float log2_scale) {
  const float slack = 8.0f / log2_scale;
  float most[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    most[half] = fmaxf(scores[0][2 * half], scores[0][2 * half + 1]);
#pragma unroll
    for (int b = 1; b < Blocks; ++b)
      most[half] = fmaxf(most[half], fmaxf(scores[b][2 * half], scores[b][2 * half + 1]));
    most[half] = largest_of_quad(most[half]);
  }
  const bool raise[2] = {most[0] > reference[0] + slack, most[1] > reference[1] + slack};
  if (__any_sync(full_warp, raise[0] || raise[1])) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float factor = raise[half] ? fast_exp2((reference[half] - most[half]) * log2_scale) : 1.0f;
      if (raise[half]) reference[half] = most[half];
      total[half] *= factor;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        sums[n][2 * half] *= factor;
        sums[n][2 * half + 1] *= factor;
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // As long as every score is -inf, 0 takes the maximum's place: -inf - -inf would be NaN.
    const float shift = reference[half] == -INFINITY ? 0.0f : reference[half] * log2_scale;
    float even = 0, odd = 0;
#pragma unroll
    for (int b = 0; b < Blocks; ++b) {
      float& first = scores[b][2 * half];
      float& second = scores[b][2 * half + 1];
      first = fast_exp2(fmaf(first, log2_scale, -shift));
      second = fast_exp2(fmaf(second, log2_scale, -shift));
      even += first;
      odd += second;
    }
    total[half] += even + odd;
  }
}

using Forward64 = Tiling<64, 2, 64, 3, 2, true>;
using Forward128 = Tiling<128, 2, 64, 3, 1, true>;

template <class Tiling>
__global__ void __launch_bounds__(Tiling::Threads, Tiling::Blocks)
    attention_forward_kernel(const __grid_constant__ AttentionTask<bf16> task,
                             const __grid_constant__ AttentionMaps maps, int blocks_per_head) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int D = Tiling::D, Keys = Tiling::Step, Stages = Tiling::Stages;
  extern __shared__ unsigned char unaligned_memory[];
  __shared__ Ring<Stages> ring;
  __shared__ Barrier queries_ready;
  __shared__ ZeroRows zeros;
  unsigned char* const memory = aligned_memory(unaligned_memory);
  unsigned char* const key_tiles = memory + Tiling::Groups * Tiling::group_tile_bytes;

  const Place place = place_of(task, blockIdx.x, blocks_per_head);
  const int first_query = (blocks_per_head - 1 - place.order) * Tiling::Rows;  // the last queries see most keys
  const int groups = min(Tiling::Groups, (task.tokens - first_query + group_rows - 1) / group_rows);
  const int first_tile = (first_query + (groups - 1) * group_rows) / Keys, tiles = first_tile + 1;

  const auto load_keys = [&](int i) {
    if (i >= tiles) return;
    Barrier& full = ring.full[i % Stages];
    unsigned char* const to = key_tiles + i % Stages * 2 * Tiling::step_tile_bytes;
    arrive_expecting(full, 2 * Tiling::step_tile_bytes);
    load_tile<D, Keys>(to, maps.qkv, task.heads + place.head, (first_tile - i) * Keys, place.batch, full);
    load_tile<D, Keys>(to + Tiling::step_tile_bytes, maps.qkv, 2 * task.heads + place.head, (first_tile - i) * Keys,
                       place.batch, full);
  };
  zeros.initialize_all();
  if (threadIdx.x == 0) {
    ring.initialize_all();
    initialize(queries_ready, 1);
    publish_barriers();
    arrive_expecting(queries_ready, static_cast<unsigned>(groups * Tiling::group_tile_bytes));
    for (int group = 0; group < groups; ++group) {
      load_tile<D, group_rows>(memory + group * Tiling::group_tile_bytes, maps.qkv, place.head,
                               first_query + group * group_rows, place.batch, queries_ready);
    }
#pragma unroll 1
    for (int i = 0; i < Stages; ++i) load_keys(i);
  }
  __syncthreads();

  const int group = __shfl_sync(full_warp, static_cast<int>(threadIdx.x) / group_threads, 0);
  if (group >= groups) return;
  const int readers = groups * 4;
  const int group_query = first_query + group * group_rows;
  unsigned char* const query_tile = memory + group * Tiling::group_tile_bytes;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int query = group_query + static_cast<int>(threadIdx.x) % group_threads / 32 * 16 + g;
  const float log2_scale = task.scale * log2_of_e;

  float scores[Keys / 8][4], sums[D / 8][4], reference[2] = {-INFINITY, -INFINITY}, total[2] = {};
#pragma unroll
  for (int n = 0; n < D / 8; ++n) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
  unsigned left[Tiling::LeftInRegisters ? D / 16 : 1][4];

  int i = first_tile - group_query / Keys;  // tiles before it hold later keys only
  ring.pass_over(i, readers, load_keys);
  wait(queries_ready, 0);
  if constexpr (Tiling::LeftInRegisters) load_left<D>(left, query_tile);

  const auto multiply_keys = [&](int tile) {
    ring.wait_for(tile);
    fence_products();
    const Descriptor keys = describe(key_tiles + tile % Stages * 2 * Tiling::step_tile_bytes, 0);
    if constexpr (Tiling::LeftInRegisters) {
      multiply_rows_async<D, Keys>(scores, left, keys);
    } else {
      multiply_rows_async<D, Keys>(scores, describe(query_tile, 0), keys);
    }
    commit_products();
  };
  bool one_by_one = false;
  const auto work = [&](auto tile) {
    constexpr bool on_diagonal = decltype(tile)::value;
    wait_for_products<0>();
    hold(scores);
    hold(sums);
    const int first_key = (first_tile - i) * Keys;
    if constexpr (on_diagonal) {
#pragma unroll
      for (int b = 0; b < Keys / 8; ++b) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (first_key + 8 * b + 2 * t + e % 2 > query + e / 2 * 8) scores[b][e] = -INFINITY;
        }
      }
    }
    weigh<D>(scores, reference, total, sums, log2_scale);
    unsigned weights[Keys / 16][4];
    pack_left(weights, scores);
    hold(scores);
    const unsigned char* const values = key_tiles + i % Stages * 2 * Tiling::step_tile_bytes + Tiling::step_tile_bytes;
    if constexpr (on_diagonal) {
      one_by_one = any_in_group(group, has_non_finite_rows<D, Keys>(values));
      add_diagonal_rows_async<D>(sums, weights, values, zeros, one_by_one);
    } else {
      hold(weights);
      hold(sums);
      fence_products();
      add_weighted_rows_async<D>(sums, weights, describe(values, Keys * row_bytes));
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
        const float score =
            row_product<D>(query_tile, query - group_query + 8 * half, rows_of(task, place, 1, key), task.size);
        const float weight = fast_exp2((score - reference[half]) * log2_scale);
        if (key <= query + 8 * half) add_row<D>(sums, half, weight, rows_of(task, place, 2, key), task.size);
      }
    }
  }

  float factors[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = sum_of_quad(total[half]);
    factors[half] = 1.0f / sum;
    if (task.lse != nullptr && t == 0 && query + 8 * half < task.tokens) {
      task.lse[static_cast<std::int64_t>(place.which) * task.tokens + query + 8 * half] =
          (reference[half] * log2_scale + log2f(sum)) * ln_of_2;
    }
  }
  store_tile<D>(sums, factors[0], factors[1], query_tile, group, maps.out, place.head, group_query, place.batch);
#endif
}

}  // namespace greyhound::cuda::hopper
