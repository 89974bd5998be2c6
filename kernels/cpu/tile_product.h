// Small products of tiles that lie in the first two cache levels, for attention. Internal to the CPU backend.
#pragma once

#include <cstdint>

namespace greyhound::cpu {

#if defined(__AVX512F__)
constexpr int tile_lanes = 16;
#elif defined(__AVX__)
constexpr int tile_lanes = 8;
#else
constexpr int tile_lanes = 4;
#endif
// The columns of b and c are padded to a multiple of this (of 32 whatever the processor, so that sizes do not depend
// on it).
constexpr std::int64_t tile_column_multiple = 32;

// Vectors of the compiler: single instructions where the processor has them that wide.
typedef float TileVector __attribute__((vector_size(tile_lanes * sizeof(float)), aligned(4), may_alias));

template <int rows>
inline void tile_product_rows(const float* a, std::int64_t a_row, std::int64_t a_depth, const float* b,
                              std::int64_t ldb, float* c, std::int64_t ldc, std::int64_t columns, std::int64_t depth,
                              bool accumulate) {
  for (std::int64_t j = 0; j < columns; j += 2 * tile_lanes) {
    TileVector sum[rows][2] = {};
    for (std::int64_t d = 0; d < depth; ++d) {
      const TileVector b0 = *reinterpret_cast<const TileVector*>(b + d * ldb + j);
      const TileVector b1 = *reinterpret_cast<const TileVector*>(b + d * ldb + j + tile_lanes);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        const float factor = a[r * a_row + d * a_depth];
        sum[r][0] += factor * b0;
        sum[r][1] += factor * b1;
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      TileVector* to = reinterpret_cast<TileVector*>(c + r * ldc + j);
      TileVector* next = reinterpret_cast<TileVector*>(c + r * ldc + j + tile_lanes);
      *to = accumulate ? *to + sum[r][0] : sum[r][0];
      *next = accumulate ? *next + sum[r][1] : sum[r][1];
    }
  }
}

// c [rows, columns] (+)= a [rows, depth] x b [depth, columns]; element (r, d) of a stands at r * a_row + d * a_depth.
// `columns` is a multiple of tile_column_multiple.
inline void tile_product(const float* a, std::int64_t a_row, std::int64_t a_depth, const float* b, std::int64_t ldb,
                         float* c, std::int64_t ldc, std::int64_t rows, std::int64_t columns, std::int64_t depth,
                         bool accumulate) {
  constexpr int step = 6;  // with two vectors of columns: 12 sums in 16 registers
  std::int64_t r = 0;
  for (; r + step <= rows; r += step) {
    tile_product_rows<step>(a + r * a_row, a_row, a_depth, b, ldb, c + r * ldc, ldc, columns, depth, accumulate);
  }
  for (; r + 2 <= rows; r += 2) {
    tile_product_rows<2>(a + r * a_row, a_row, a_depth, b, ldb, c + r * ldc, ldc, columns, depth, accumulate);
  }
  if (r < rows) {
    tile_product_rows<1>(a + r * a_row, a_row, a_depth, b, ldb, c + r * ldc, ldc, columns, depth, accumulate);
  }
}

}  // namespace greyhound::cpu
