// The tiling of gelu_product.cuh, and what becomes of a tile of sums: warps read it from shared memory, apply GELU or
// its slope and write whole rows. Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/cuda/gelu.cuh>
#include <greyhound/kernels/cuda/hopper_product.cuh>
#include <greyhound/kernels/cuda/packed.cuh>

namespace greyhound::cuda::hopper {

// Forward: pre = a w^T + bias, out = gelu(pre), w [columns, depth]. Backward: out = (a w) * gelu'(pre), w [depth,
// columns], and partial sums over its rows. a [rows, depth], pre and out [rows, columns]. The product is rounded to
// bf16 before GELU or its slope is applied, as it would be in memory. Columns and depth are multiples of 8, rows begin
// at 16 bytes.
struct GeluProductTask {
  int rows, columns, depth;
  const bf16* bias;  // forward, [columns], aligned to 4 bytes; nullptr: none
  bf16 *pre, *out;   // pre: written by forward, nullptr: not kept; read by backward
  std::int64_t pre_stride, out_stride;
  float* partials;  // backward, [tiles along the rows, columns]
};

struct GeluProductMaps {
  CUtensorMap a, w;
};

// Measured on an H200 against this: w's tiles copied by one block for two of a cluster, instructions of 256 columns
// with three finishing warps beside the one that copies. Both were slower.
template <bool backward>
struct GeluProductTiling {
  static constexpr bool Backward = backward;
  static constexpr int Rows = 128, Columns = 256, Depth = 64, Stages = 3;
  static constexpr int Wide = 128;                                 // columns of one instruction's product
  static constexpr int Groups = Rows / group_rows, Finishers = 4;  // groups that multiply, warps that finish tiles
  static constexpr int Threads = (1 + Groups + 1) * group_threads;
  // Registers of a thread: of the first group, of those that multiply, of the last. All groups begin with the same
  // number, the most that the block can have.
  static constexpr int FirstRegisters = 40, ProductRegisters = 176, LastRegisters = 120;
  static constexpr int a_bytes = Rows * Depth * 2, w_bytes = Columns * Depth * 2, stage_bytes = a_bytes + w_bytes;
  static constexpr int part_bytes = Rows * row_bytes;  // of the tile of sums
  static constexpr int tile_bytes = Columns / part_columns * part_bytes;
  static constexpr int shared_bytes = 1024 + Stages * stage_bytes + tile_bytes;  // 1024 to align them
  static constexpr int a_box = Rows, w_box = backward ? Depth : Columns;         // rows
  static_assert(Depth == part_columns && Columns % part_columns == 0, "boxes of 64 columns");
  static constexpr int begin_registers = 65536 / Threads / 8 * 8;
  static_assert(FirstRegisters + Groups * ProductRegisters + LastRegisters <=
                    begin_registers * (Threads / group_threads),
                "a group that takes registers would wait for ever");
};

template <class Tiling>
struct GeluProductShared {
  Barrier full[Tiling::Stages], empty[Tiling::Stages];    // the ring's
  Barrier written[Tiling::Groups], free[Tiling::Groups];  // each group's rows of the tile of sums
  // Sums over the rows of each warp; of two tiles in turn, so that one barrier a tile is enough.
  float sums[Tiling::Backward ? 2 : 1][Tiling::Backward ? Tiling::Finishers : 1][Tiling::Columns];

  __device__ void initialize_all() {
    for (int s = 0; s < Tiling::Stages; ++s) {
      initialize(full[s], 1);
      initialize(empty[s], Tiling::Groups * 4);  // warps that multiply
    }
    for (int g = 0; g < Tiling::Groups; ++g) {
      initialize(written[g], 4);
      initialize(free[g], Tiling::Finishers);
    }
  }
};

// The tiles of a block. Those at work at the same time lie in few rows of tiles, which share a; all of w stays in L2.
template <class Tiling>
struct TileWalk {
  int tile, tiles, tile_columns;

  __device__ explicit TileWalk(const GeluProductTask& task) {
    tile_columns = (task.columns + Tiling::Columns - 1) / Tiling::Columns;
    tiles = (task.rows + Tiling::Rows - 1) / Tiling::Rows * tile_columns;
    tile = static_cast<int>(blockIdx.x);
  }
  __device__ bool valid() const { return tile < tiles; }
  __device__ void advance() { tile += static_cast<int>(gridDim.x); }
  __device__ int tile_row() const { return tile / tile_columns; }
  __device__ int row() const { return tile_row() * Tiling::Rows; }
  __device__ int column() const { return tile % tile_columns * Tiling::Columns; }
};

// A warp takes rows two by two, every `Finishers`th pair of a tile; a lane has 8 columns, 16 bytes, of each.
template <class Tiling>
struct RowPairs {
  static constexpr int count = Tiling::Rows / 2, of_group = group_rows / 2, step = Tiling::Finishers;
  const unsigned char* part;
  int lane, first;

  __device__ RowPairs(const unsigned char* tile, int warp) {
    lane = static_cast<int>(threadIdx.x) % 32;
    first = warp;
    part = tile + lane / 8 * Tiling::part_bytes;
  }
  __device__ Packed<bf16> load(int row) const {
    return {*reinterpret_cast<const uint4*>(part + row * row_bytes + (lane % 8 ^ row % 8) * 16)};
  }
  // Before `turn` pairs from `base` on: waits for the rows of the second group where the first of them are among the
  // pairs, and says that those of the first group have been read where they are behind.
  template <int Turn>
  __device__ void pass(GeluProductShared<Tiling>& shared, int base, unsigned parity) const {
    if (base >= of_group && base - Turn * step < of_group) release(shared.free[0]);
    if (base + (Turn - 1) * step >= of_group && base - step < of_group) wait(shared.written[1], parity);
  }
  __device__ void release(Barrier& free) const {
    __syncwarp();
    if (lane == 0) arrive(free);
  }
};

// A lane's 8 columns of a tensor in one tile: the first row, and how many rows of the tile lie inside of the tensor.
template <class Tiling>
struct TileColumns {
  unsigned char* first;
  unsigned row_step;  // bytes
  int rows;

  __device__ TileColumns(const GeluProductTask& task, const TileWalk<Tiling>& walk, bf16* data, std::int64_t stride,
                         int lane) {
    const int row = walk.row(), column = walk.column() + lane * 8;
    first = reinterpret_cast<unsigned char*>(data + row * stride + column);
    row_step = static_cast<unsigned>(stride) * 2;
    rows = data != nullptr && walk.valid() && column < task.columns ? min(task.rows - row, Tiling::Rows) : 0;
  }
  // From here on, the tile begins `count` rows further down.
  __device__ void advance(int count) {
    first += static_cast<std::uint64_t>(row_step) * static_cast<unsigned>(count);
    rows -= count;
  }
  // Instructions with a predicate, so that rows need no branches.
  __device__ void store(int row, const Packed<bf16>& value) const {
    asm volatile(
        "{\n.reg .pred valid;\nsetp.ne.b32 valid, %5, 0;\n@valid st.global.v4.b32 [%0], {%1, %2, %3, %4};\n}" ::"l"(
            first + static_cast<std::uint64_t>(row_step) * static_cast<unsigned>(row)),
        "r"(value.bits.x), "r"(value.bits.y), "r"(value.bits.z), "r"(value.bits.w), "r"(static_cast<int>(row < rows))
        : "memory");
  }
  // Zeros outside of the tensor. Begins here, not where the value is needed.
  __device__ void load(Packed<bf16>& value, int row) const {
    asm volatile(
        "{\n.reg .pred valid;\nsetp.ne.b32 valid, %5, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\n"
        "mov.b32 %3, 0;\n@valid ld.global.cs.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
        : "=&r"(value.bits.x), "=&r"(value.bits.y), "=&r"(value.bits.z), "=&r"(value.bits.w)
        : "l"(first + static_cast<std::uint64_t>(row_step) * static_cast<unsigned>(row)),
          "r"(static_cast<int>(row < rows)));
  }
};

// One instruction for two elements.
__device__ inline Packed<bf16> pack_pairs(const float (&values)[8]) {
  return {make_uint4(pack_bf16(values[0], values[1]), pack_bf16(values[2], values[3]), pack_bf16(values[4], values[5]),
                     pack_bf16(values[6], values[7]))};
}

// Forward: writes the sums as they are, and GELU of them.
template <class Tiling>
__device__ inline void apply_gelu(const GeluProductTask& task, GeluProductShared<Tiling>& shared,
                                  const unsigned char* tile, int warp) {
  const RowPairs<Tiling> pairs(tile, warp);
  unsigned turn = 0;
#pragma unroll 1
  for (TileWalk<Tiling> walk(task); walk.valid(); walk.advance()) {
    TileColumns<Tiling> pre(task, walk, task.pre, task.pre_stride, pairs.lane);
    TileColumns<Tiling> out(task, walk, task.out, task.out_stride, pairs.lane);
    pre.advance(2 * pairs.first);
    out.advance(2 * pairs.first);
    wait(shared.written[0], turn);
#pragma unroll 1
    for (int pair = pairs.first; pair < pairs.count; pair += pairs.step) {
      pairs.template pass<1>(shared, pair, turn);
      Packed<bf16> held[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) held[r] = pairs.load(2 * pair + r);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        pre.store(r, held[r]);
        float values[8];
        unpack(held[r], values);
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = gelu(values[i]);
        held[r] = pack_pairs(values);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) out.store(r, held[r]);
      pre.advance(2 * pairs.step);
      out.advance(2 * pairs.step);
    }
    pairs.release(shared.free[1]);
    turn ^= 1;
  }
}

// Backward: multiplies by the slope of GELU, of which it reads `pre` four pairs of rows ahead, and adds up columns:
// a warp's rows in order, then warps in order.
template <class Tiling>
__device__ inline void apply_slope(const GeluProductTask& task, GeluProductShared<Tiling>& shared,
                                   const unsigned char* tile, int warp) {
  constexpr int ahead = 4;
  const RowPairs<Tiling> pairs(tile, warp);
  TileWalk<Tiling> walk(task);
  Packed<bf16> held[ahead][2];
  TileColumns<Tiling> pre(task, walk, task.pre, task.pre_stride, pairs.lane);
  pre.advance(2 * pairs.first);
#pragma unroll
  for (int s = 0; s < ahead; ++s) {
#pragma unroll
    for (int r = 0; r < 2; ++r) pre.load(held[s][r], 2 * s * pairs.step + r);
  }
  unsigned turn = 0;
#pragma unroll 1
  while (walk.valid()) {
    const int tile_row = walk.tile_row(), first_column = walk.column();
    TileColumns<Tiling> out(task, walk, task.out, task.out_stride, pairs.lane);
    out.advance(2 * pairs.first);
    walk.advance();
    float sums[8] = {};
    wait(shared.written[0], turn);
#pragma unroll 1
    for (int base = pairs.first; base < pairs.count; base += ahead * pairs.step) {
      pairs.template pass<ahead>(shared, base, turn);
      // What is read ahead: the next turn's rows, or the first of the next tile.
      if (base + ahead * pairs.step < pairs.count) {
        pre.advance(2 * ahead * pairs.step);
      } else {
        pre = TileColumns<Tiling>(task, walk, task.pre, task.pre_stride, pairs.lane);
        pre.advance(2 * pairs.first);
      }
#pragma unroll
      for (int s = 0; s < ahead; ++s) {
        const int pair = base + s * pairs.step;
        if (pair < pairs.count) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            float values[8], inputs[8];
            unpack(pairs.load(2 * pair + r), values);
            unpack(held[s][r], inputs);
#pragma unroll
            for (int i = 0; i < 8; ++i) values[i] *= gelu_slope(inputs[i]);
            const Packed<bf16> rounded = pack_pairs(values);
            out.store(2 * s * pairs.step + r, rounded);
            unpack(rounded, values);
#pragma unroll
            for (int i = 0; i < 8; ++i) sums[i] += values[i];
          }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) pre.load(held[s][r], 2 * s * pairs.step + r);
      }
      out.advance(2 * ahead * pairs.step);
    }
    pairs.release(shared.free[1]);

    float* const own = shared.sums[turn][warp] + pairs.lane * 8;
    *reinterpret_cast<float4*>(own) = make_float4(sums[0], sums[1], sums[2], sums[3]);
    *reinterpret_cast<float4*>(own + 4) = make_float4(sums[4], sums[5], sums[6], sums[7]);
    warps_barrier<1, Tiling::Finishers>();
    for (int mine = warp * 32 + pairs.lane; mine < Tiling::Columns; mine += Tiling::Finishers * 32) {
      if (first_column + mine >= task.columns) break;
      float sum = 0;
#pragma unroll
      for (int w = 0; w < Tiling::Finishers; ++w) sum += shared.sums[turn][w][mine];
      task.partials[static_cast<std::int64_t>(tile_row) * task.columns + first_column + mine] = sum;
    }
    __syncwarp();
    turn ^= 1;
  }
}

}  // namespace greyhound::cuda::hopper
