// Tiles of bf16 rows in shared memory and their products on tensor cores, for attention's kernels. Internal to the CUDA
// backend.
//
// Each warp owns `Atoms` x 16 rows of a block's tile and multiplies them with tiles that the whole block walks along.
// Sums that are a product's result serve the next product as its left operand as they lie in registers.
#pragma once

#include <greyhound/core/dtype.h>
#include <greyhound/kernels/cuda/tensor_core.cuh>

#include <cstdint>

namespace greyhound::cuda {

inline constexpr unsigned full_warp = 0xffffffffu;

// Elements from row to row of a tile: an odd number of 16-byte pieces, so that eight rows' pieces at one column lie in
// different banks.
template <int D>
inline constexpr int tile_stride = D + 8;

// Starts copying `rows` rows of `size` elements, a multiple of 8, to a tile [Rows, D]; zeros everywhere else. Offsets
// inside a tile fit 32 bits: see has_packed_heads.
template <int D, int Rows, int Threads>
__device__ inline void load_tile(bf16* tile, const bf16* from, std::int64_t stride, int rows, int size) {
  constexpr int pieces = D / 8, rows_at_once = Threads / pieces;
  static_assert(Threads % pieces == 0 && Rows % rows_at_once == 0, "every thread copies pieces of one column");
  const int first_row = static_cast<int>(threadIdx.x) / pieces, column = static_cast<int>(threadIdx.x) % pieces * 8;
  const unsigned narrow_stride = static_cast<unsigned>(stride);
#pragma unroll
  for (int i = 0; i < Rows / rows_at_once; ++i) {
    const int row = i * rows_at_once + first_row;
    const bool valid = row < rows && column < size;
    copy_async_16(tile + row * tile_stride<D> + column,
                  from + (valid ? static_cast<unsigned>(row) * narrow_stride + static_cast<unsigned>(column) : 0u),
                  valid);
  }
}

// products[a][b] = rows 16 a .. of `left` times rows 8 b .. of `right`, along the D columns.
template <int D, int Atoms, int Blocks>
__device__ inline void multiply_rows(float (&products)[Atoms][Blocks][4], const bf16* left, const bf16* right) {
  const int lane = threadIdx.x % 32;
  const bf16* left_row = left + lane % 16 * tile_stride<D> + lane / 16 * 8;
  const bf16* right_row = right + (lane / 16 * 8 + lane % 8) * tile_stride<D> + lane / 8 % 2 * 8;
#pragma unroll
  for (int a = 0; a < Atoms; ++a) {
#pragma unroll
    for (int b = 0; b < Blocks; ++b) {
#pragma unroll
      for (int e = 0; e < 4; ++e) products[a][b][e] = 0;
    }
  }
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    unsigned l[Atoms][4];
#pragma unroll
    for (int a = 0; a < Atoms; ++a) load_matrices(l[a], left_row + a * 16 * tile_stride<D> + k * 16);
#pragma unroll
    for (int pair = 0; pair < Blocks / 2; ++pair) {
      unsigned r[4];
      load_matrices(r, right_row + pair * 16 * tile_stride<D> + k * 16);
#pragma unroll
      for (int a = 0; a < Atoms; ++a) {
        multiply_add(products[a][2 * pair], l[a], r[0], r[1]);
        multiply_add(products[a][2 * pair + 1], l[a], r[2], r[3]);
      }
    }
  }
}

// Products as the left operand of the next product, `Steps` of 16 columns.
template <int Atoms, int Blocks>
__device__ inline void pack_weights(unsigned (&weights)[Atoms][Blocks / 2][4],
                                    const float (&values)[Atoms][Blocks][4]) {
#pragma unroll
  for (int a = 0; a < Atoms; ++a) {
#pragma unroll
    for (int s = 0; s < Blocks / 2; ++s) {
      weights[a][s][0] = pack_bf16(values[a][2 * s][0], values[a][2 * s][1]);
      weights[a][s][1] = pack_bf16(values[a][2 * s][2], values[a][2 * s][3]);
      weights[a][s][2] = pack_bf16(values[a][2 * s + 1][0], values[a][2 * s + 1][1]);
      weights[a][s][3] = pack_bf16(values[a][2 * s + 1][2], values[a][2 * s + 1][3]);
    }
  }
}

// sums[a] += weights[a] times rows 0 .. 16 * Steps of the tile.
template <int D, int Atoms, int Steps>
__device__ inline void add_weighted_rows(float (&sums)[Atoms][D / 8][4], const unsigned (&weights)[Atoms][Steps][4],
                                         const bf16* tile) {
  const int lane = threadIdx.x % 32;
  const bf16* row = tile + lane % 16 * tile_stride<D> + lane / 16 * 8;
#pragma unroll
  for (int s = 0; s < Steps; ++s) {
#pragma unroll
    for (int pair = 0; pair < D / 16; ++pair) {
      unsigned r[4];
      load_matrices_transposed(r, row + s * 16 * tile_stride<D> + pair * 16);
#pragma unroll
      for (int a = 0; a < Atoms; ++a) {
        multiply_add(sums[a][2 * pair], weights[a][s], r[0], r[1]);
        multiply_add(sums[a][2 * pair + 1], weights[a][s], r[2], r[3]);
      }
    }
  }
}

__device__ inline bool has_non_finite(unsigned word) {
  return (word & 0x7f80u) == 0x7f80u || (word & 0x7f800000u) == 0x7f800000u;
}

// sums += weights times 16 rows that stand on the diagonal: row j counts for row i of the weights where j <= i, or
// j >= i where `Later`. The weights of the others are 0, but 0 times a NaN or an infinity is a NaN, so rows that hold
// any are added one by one.
template <int D, bool Later>
__device__ inline void add_diagonal_rows(float (&sums)[D / 8][4], const unsigned (&weights)[4], const bf16* rows) {
  const int lane = threadIdx.x % 32;
  constexpr int pieces = D / 8;
  bool non_finite = false;
#pragma unroll
  for (int i = 0; i < 16 * pieces / 32; ++i) {
    const int piece = i * 32 + lane;
    const uint4 bits = *reinterpret_cast<const uint4*>(rows + piece / pieces * tile_stride<D> + piece % pieces * 8);
    non_finite = non_finite || has_non_finite(bits.x) || has_non_finite(bits.y) || has_non_finite(bits.z) ||
                 has_non_finite(bits.w);
  }
  if (!__any_sync(full_warp, non_finite)) {
    const bf16* row = rows + lane % 16 * tile_stride<D> + lane / 16 * 8;
#pragma unroll
    for (int pair = 0; pair < D / 16; ++pair) {
      unsigned r[4];
      load_matrices_transposed(r, row + pair * 16);
      multiply_add(sums[2 * pair], weights, r[0], r[1]);
      multiply_add(sums[2 * pair + 1], weights, r[2], r[3]);
    }
    return;
  }
  const int g = lane / 4, t = lane % 4;
#pragma unroll 1
  for (int j = 0; j < 16; ++j) {
    const int source = g * 4 + j % 8 / 2;
    const unsigned upper = __shfl_sync(full_warp, j < 8 ? weights[0] : weights[2], source);
    const unsigned lower = __shfl_sync(full_warp, j < 8 ? weights[1] : weights[3], source);
    const float upper_weight = __uint_as_float(j % 2 == 0 ? upper << 16 : upper & 0xffff0000u);
    const float lower_weight = __uint_as_float(j % 2 == 0 ? lower << 16 : lower & 0xffff0000u);
    const bool upper_sees = Later ? j >= g : j <= g, lower_sees = Later ? j >= g + 8 : j <= g + 8;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const unsigned word = *reinterpret_cast<const unsigned*>(rows + j * tile_stride<D> + n * 8 + 2 * t);
      const float first = __uint_as_float(word << 16), second = __uint_as_float(word & 0xffff0000u);
      if (upper_sees) {
        sums[n][0] = fmaf(upper_weight, first, sums[n][0]);
        sums[n][1] = fmaf(upper_weight, second, sums[n][1]);
      }
      if (lower_sees) {
        sums[n][2] = fmaf(lower_weight, first, sums[n][2]);
        sums[n][3] = fmaf(lower_weight, second, sums[n][3]);
      }
    }
  }
}

// The same as add_weighted_rows where the diagonal may run through the tile. `first` is the position of the weights'
// first row, `first_of_tile` that of the tile's, both multiples of 16. What lies behind the diagonal is not read.
template <int D, int Atoms, int Steps, bool Later>
__device__ inline void add_visible_rows(float (&sums)[Atoms][D / 8][4], const unsigned (&weights)[Atoms][Steps][4],
                                        const bf16* tile, int first, int first_of_tile) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int a = 0; a < Atoms; ++a) {
#pragma unroll
    for (int s = 0; s < Steps; ++s) {
      const int ahead = first_of_tile + 16 * s - (first + 16 * a);
      const bf16* rows = tile + s * 16 * tile_stride<D>;
      if (ahead == 0) {
        add_diagonal_rows<D, Later>(sums[a], weights[a][s], rows);
      } else if (Later ? ahead > 0 : ahead < 0) {
        const bf16* row = rows + lane % 16 * tile_stride<D> + lane / 16 * 8;
#pragma unroll
        for (int pair = 0; pair < D / 16; ++pair) {
          unsigned r[4];
          load_matrices_transposed(r, row + pair * 16);
          multiply_add(sums[a][2 * pair], weights[a][s], r[0], r[1]);
          multiply_add(sums[a][2 * pair + 1], weights[a][s], r[2], r[3]);
        }
      }
    }
  }
}

// Writes a warp's rows, each times its factor, through a part of shared memory that no other warp uses.
template <int D, int Atoms>
__device__ inline void store_rows(const float (&sums)[Atoms][D / 8][4], const float (&factors)[Atoms][2], bf16* staging,
                                  bf16* to, std::int64_t stride, int rows, int size) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  __syncwarp();
#pragma unroll
  for (int a = 0; a < Atoms; ++a) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      bf16* place = staging + (16 * a + g) * tile_stride<D> + n * 8 + 2 * t;
      *reinterpret_cast<unsigned*>(place) = pack_bf16(sums[a][n][0] * factors[a][0], sums[a][n][1] * factors[a][0]);
      *reinterpret_cast<unsigned*>(place + 8 * tile_stride<D>) =
          pack_bf16(sums[a][n][2] * factors[a][1], sums[a][n][3] * factors[a][1]);
    }
  }
  __syncwarp();
  constexpr int pieces = D / 8;
#pragma unroll 4
  for (int i = 0; i < Atoms * 16 * pieces / 32; ++i) {
    const int piece = i * 32 + lane, row = piece / pieces, column = piece % pieces * 8;
    if (row < rows && column < size) {
      *reinterpret_cast<uint4*>(to + row * stride + column) =
          *reinterpret_cast<const uint4*>(staging + row * tile_stride<D> + column);
    }
  }
}

}  // namespace greyhound::cuda
