// Packing for the built-in product: strips of an operand, depth-major, as the innermost kernel reads them. Internal to
// the CPU backend.
#pragma once

#include <algorithm>
#include <cstdint>

namespace greyhound::cpu {

// An operand of a panel: element (row, depth) stands at row * row_step + depth * depth_step, and one of the steps is 1.
// "Rows" are a's rows or b's columns.
struct PackedFrom {
  const float* data;
  std::int64_t row_step, depth_step;
};

// 8 floats whatever the processor: two registers where vectors are shorter.
typedef float PackVector __attribute__((vector_size(32), aligned(4), may_alias));
constexpr std::int64_t pack_block = 8;

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define GREYHOUND_SHUFFLES_VECTORS 1
#endif
#endif

#ifdef GREYHOUND_SHUFFLES_VECTORS
// rows[r][d] of eight rows becomes columns[d][r].
inline void transpose_block(const PackVector (&rows)[8], PackVector (&columns)[8]) {
  PackVector pairs[8], quads[8];
  for (int r = 0; r < 8; r += 2) {
    pairs[r] = __builtin_shufflevector(rows[r], rows[r + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[r + 1] = __builtin_shufflevector(rows[r], rows[r + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int r = 0; r < 8; r += 4) {
    for (int half = 0; half < 2; ++half) {
      quads[r + 2 * half] = __builtin_shufflevector(pairs[r + half], pairs[r + 2 + half], 0, 1, 8, 9, 4, 5, 12, 13);
      quads[r + 2 * half + 1] =
          __builtin_shufflevector(pairs[r + half], pairs[r + 2 + half], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int d = 0; d < 4; ++d) {
    columns[d] = __builtin_shufflevector(quads[d], quads[d + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    columns[d + 4] = __builtin_shufflevector(quads[d], quads[d + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

// A full strip whose depth is contiguous. Groups of eight rows are transposed at a time; a group may reach past the
// strip, into floats that the next depth's first group writes after it, so groups go from the last to the first.
template <int width>
void pack_transposed_strip(const PackedFrom& from, std::int64_t first_row, std::int64_t rows, std::int64_t depth,
                           float* to) {
  const std::int64_t whole = depth / pack_block * pack_block;
  // What reaches past the strip must not reach past the buffer.
  const std::int64_t safe =
      width % pack_block == 0 ? whole : std::min(whole, depth - pack_block) / pack_block * pack_block;
  for (std::int64_t d = 0; d < safe; d += pack_block) {
    for (int group = (width - 1) / 8 * 8; group >= 0; group -= 8) {
      PackVector lines[8], columns[8];
      for (int r = 0; r < 8; ++r) {
        const std::int64_t row = std::min<std::int64_t>(first_row + group + r, rows - 1);
        lines[r] = *reinterpret_cast<const PackVector*>(from.data + row * from.row_step + d);
      }
      transpose_block(lines, columns);
      for (int k = 0; k < 8; ++k) *reinterpret_cast<PackVector*>(to + (d + k) * width + group) = columns[k];
    }
  }
  for (int r = 0; r < width; ++r) {
    for (std::int64_t d = std::max<std::int64_t>(safe, 0); d < depth; ++d) {
      to[d * width + r] = from.data[(first_row + r) * from.row_step + d];
    }
  }
}
#endif

// One strip of `width` rows from first_row on. Rows beyond the last are zeros: those only meet results that are not
// stored.
template <int width>
void pack_strip(const PackedFrom& from, std::int64_t first_row, std::int64_t rows, std::int64_t depth, float* to) {
  const std::int64_t count = std::min<std::int64_t>(width, rows - first_row);
  const float* source = from.data + first_row * from.row_step;
  if (count < width) {
    std::fill(to, to + width * depth, 0.0f);
    for (std::int64_t d = 0; d < depth; ++d) {
      for (std::int64_t r = 0; r < count; ++r) to[d * width + r] = source[r * from.row_step + d * from.depth_step];
    }
    return;
  }
  if (from.row_step == 1) {
    for (std::int64_t d = 0; d < depth; ++d) std::copy_n(source + d * from.depth_step, width, to + d * width);
    return;
  }
#ifdef GREYHOUND_SHUFFLES_VECTORS
  if (depth >= 2 * pack_block) return pack_transposed_strip<width>(from, first_row, rows, depth, to);
#endif
  for (std::int64_t r = 0; r < width; ++r) {
    for (std::int64_t d = 0; d < depth; ++d) to[d * width + r] = source[r * from.row_step + d];
  }
}

// All strips. Where rows are contiguous, a few depths of all strips are copied at a time: at a stride of a multiple of
// 4 KiB more of them would not stay in the first-level cache until the next strip needs the rest of their lines.
template <int width>
void pack_strips(const PackedFrom& from, std::int64_t rows, std::int64_t depth, float* to) {
  const std::int64_t whole = from.row_step == 1 ? rows / width * width : 0;
  for (std::int64_t d = 0; d < depth && whole > 0; d += pack_block) {
    const std::int64_t end = std::min(depth, d + pack_block);
    for (std::int64_t row = 0; row < whole; row += width) {
      for (std::int64_t k = d; k < end; ++k) {
        std::copy_n(from.data + row + k * from.depth_step, width, to + row * depth + k * width);
      }
    }
  }
  for (std::int64_t row = whole; row < rows; row += width) pack_strip<width>(from, row, rows, depth, to + row * depth);
}

// Asks for a part of the memory that pack_strip of a strip of `width` rows will read: the share'th of `shares`.
// Inlined, since GCC takes a function that only prefetches for one without an effect.
template <int width>
[[gnu::always_inline]] inline void prefetch_strip(const PackedFrom& from, std::int64_t first_row, std::int64_t rows,
                                                  std::int64_t depth, std::int64_t share, std::int64_t shares) {
  constexpr std::int64_t line = 16;  // floats
  const std::int64_t count = std::min<std::int64_t>(width, rows - first_row);
  if (count <= 0) return;
  const float* source = from.data + first_row * from.row_step;
  // Lines lie along one direction and repeat along the other.
  const bool along_rows = from.row_step == 1;
  const std::int64_t along = ((along_rows ? count : depth) + line - 1) / line;
  const std::int64_t step = along_rows ? from.depth_step : from.row_step;
  const std::int64_t lines = along * (along_rows ? depth : count);
  for (std::int64_t l = lines * share / shares; l < lines * (share + 1) / shares; ++l) {
    __builtin_prefetch(source + l / along * step + l % along * line);
  }
}

}  // namespace greyhound::cpu
