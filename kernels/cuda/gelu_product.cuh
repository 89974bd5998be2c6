// Products with GELU, or its gradient, on their way to memory, by Hopper's instructions: what would be a pass over the
// product of its own happens beside the tensor cores' work on the next tile. Internal to the CUDA backend.
//
// A block stays on its multiprocessor and makes one tile of 128 x 256 after another. One thread copies operands ahead,
// in a ring. Two warpgroups multiply, 64 rows each, and leave their sums, rounded, in a tile in shared memory, from
// which other warps finish them.
#pragma once

#include <greyhound/kernels/cuda/gelu_product_finish.cuh>

namespace greyhound::cuda::hopper {

// One thread: fills the ring.
template <class Tiling>
__device__ inline void copy_operands(const GeluProductTask& task, const GeluProductMaps& maps,
                                     GeluProductShared<Tiling>& shared, unsigned char* stages) {
  RingPlace<Tiling::Stages> place;
#pragma unroll 1
  for (TileWalk<Tiling> walk(task); walk.valid(); walk.advance()) {
    const int row = walk.row(), column = walk.column();
#pragma unroll 1
    for (int depth = 0; depth < task.depth; depth += Tiling::Depth) {
      Barrier& full = shared.full[place.stage];
      unsigned char* const a = stages + place.stage * Tiling::stage_bytes;
      unsigned char* const w = a + Tiling::a_bytes;
      wait(shared.empty[place.stage], place.parity ^ 1);
      arrive_expecting(full, Tiling::stage_bytes);
      load_box(a, maps.a, depth, row, full);
      if constexpr (Tiling::Backward) {
#pragma unroll
        for (int part = 0; part < Tiling::Columns; part += part_columns) {  // of 64 rows and 64 columns
          load_box(w + part * row_bytes, maps.w, column + part, depth, full);
        }
      } else {
        load_box(w, maps.w, depth, column, full);
      }
      place.advance();
    }
  }
}

// Bias of the lane's columns, as pairs of bf16.
template <class Tiling>
__device__ inline void load_bias(unsigned (&bias)[Tiling::Columns / 8], const GeluProductTask& task, int column) {
  const int first = column + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int n = 0; n < Tiling::Columns / 8; ++n) {
    bias[n] = 0;
    if (task.bias != nullptr && first + 8 * n < task.columns) {
      // volatile: begins here, long before it is needed.
      asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(bias[n]) : "l"(task.bias + first + 8 * n));
    }
  }
}

// A warpgroup: 64 rows of each tile.
template <class Tiling>
__device__ inline void multiply_tiles(const GeluProductTask& task, GeluProductShared<Tiling>& shared,
                                      unsigned char* stages, unsigned char* tile, int group) {
  constexpr int Blocks = Tiling::Columns / 8, Wide = Tiling::Wide / 8, Parts = Blocks / Wide;
  constexpr unsigned left_step = 32, right_step = Tiling::Backward ? 16 * row_bytes : 32;  // of 16 depths
  const int lane = threadIdx.x % 32, warp = threadIdx.x % group_threads / 32;
  const Descriptor left = describe(stages + group * group_rows * row_bytes, 0);
  const Descriptor right = describe(stages + Tiling::a_bytes, Tiling::Backward ? Tiling::Depth * row_bytes : 0);
  // Four matrices 8 x 8 are stored at once: rows 0 and 8 of columns 0, then of columns 8. Lane % 8 is the row.
  const int matrix = lane / 8, matrix_row = lane % 8;
  unsigned char* const rows = tile + (group * group_rows + warp * 16 + matrix % 2 * 8 + matrix_row) * row_bytes;

  float sums[Parts][Wide][4];
#pragma unroll
  for (int b = 0; b < Blocks; ++b) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[b / Wide][b % Wide][e] = 0;
  }
  unsigned bias[Blocks];
  RingPlace<Tiling::Stages> place;
  unsigned turn = 0;  // parity of the tile
#pragma unroll 1
  for (TileWalk<Tiling> walk(task); walk.valid(); walk.advance()) {
    if constexpr (!Tiling::Backward) load_bias<Tiling>(bias, task, walk.column());
    int before = 0;
#pragma unroll 1
    for (int depth = 0; depth < task.depth; depth += Tiling::Depth) {
      const unsigned stage = static_cast<unsigned>(place.stage * Tiling::stage_bytes);
      wait(shared.full[place.stage], place.parity);
      fence_products();
#pragma unroll
      for (unsigned k = 0; k < Tiling::Depth / 16; ++k) {
#pragma unroll
        for (unsigned p = 0; p < Parts; ++p) {
          multiply_async<Tiling::Backward>(sums[p], advance(left, stage + k * left_step),
                                           advance(right, stage + k * right_step + p * Tiling::Wide * row_bytes),
                                           k > 0 || depth > 0);
        }
      }
      commit_products();
      wait_for_products<1>();
      if (depth > 0 && lane == 0) arrive(shared.empty[before]);
      before = place.stage;
      place.advance();
    }
    wait_for_products<0>();
#pragma unroll
    for (int p = 0; p < Parts; ++p) hold(sums[p]);
    if (lane == 0) arrive(shared.empty[before]);

    wait(shared.free[group], turn ^ 1);
#pragma unroll
    for (int b = 0; b < Blocks; b += 2) {
      unsigned words[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float(&values)[4] = sums[(b + i) / Wide][(b + i) % Wide];
        if constexpr (!Tiling::Backward) {
          float added[2];
          unpack_word(bias[b + i], added, bf16{});
#pragma unroll
          for (int e = 0; e < 4; ++e) values[e] += added[e % 2];
        }
        words[2 * i] = pack_bf16(values[0], values[1]);
        words[2 * i + 1] = pack_bf16(values[2], values[3]);
      }
      store_matrices(rows + b / 8 * Tiling::part_bytes + ((b % 8 + matrix / 2) ^ matrix_row) * 16, words);
    }
    __syncwarp();
    if (lane == 0) arrive(shared.written[group]);
    turn ^= 1;
  }
}

// Tiling::Threads threads, Tiling::shared_bytes of dynamic shared memory; any number of blocks.
template <class Tiling>
__global__ void __launch_bounds__(Tiling::Threads, 1)
    gelu_product_kernel(const __grid_constant__ GeluProductTask task, const __grid_constant__ GeluProductMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char unaligned_memory[];
  __shared__ __align__(16) GeluProductShared<Tiling> shared;
  unsigned char* const stages = aligned_memory(unaligned_memory);
  unsigned char* const tile = stages + Tiling::Stages * Tiling::stage_bytes;
  if (threadIdx.x == 0) {
    shared.initialize_all();
    publish_barriers();
    prefetch(maps.a);
    prefetch(maps.w);
  }
  __syncthreads();

  // One branch for each group of warps, which gets its registers at once.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0), group = warp / 4;
  if (group == 0) {
    give_registers<Tiling::FirstRegisters>();
    if (warp == 0) {
      if (threadIdx.x == 0) copy_operands<Tiling>(task, maps, shared, stages);
      __syncwarp();
    }
  } else if (group <= Tiling::Groups) {
    take_registers<Tiling::ProductRegisters>();
    multiply_tiles<Tiling>(task, shared, stages, tile, group - 1);
  } else {
    give_registers<Tiling::LastRegisters>();
    const int finisher = warp - 4 * (Tiling::Groups + 1);
    if constexpr (Tiling::Backward) {
      apply_slope<Tiling>(task, shared, tile, finisher);
    } else {
      apply_gelu<Tiling>(task, shared, tile, finisher);
    }
  }
#endif
}

}  // namespace greyhound::cuda::hopper
