// What attention's forward and backward share: the sizes of tiles, loading heads into fp32 tiles, dropout. Internal to
// the CPU backend.
//
// Scores are held transposed, [keys, queries]: the softmax then runs along the rows, vectors hold queries, and keys and
// values are read as they lie in memory.
#pragma once

#include <greyhound/core/rng.h>
#include <greyhound/core/workspace.h>
#include <greyhound/kernels/attention.h>
#include <greyhound/kernels/cpu/tile_product.h>

#include <algorithm>

namespace greyhound::cpu {

constexpr std::int64_t query_tile = 64;
constexpr std::int64_t key_tile = 64;

inline std::int64_t tiles_of(std::int64_t tokens, std::int64_t tile) { return (tokens + tile - 1) / tile; }

struct HeadShape {
  std::int64_t batch, tokens, channels, heads;

  std::int64_t size() const { return channels / heads; }
  std::int64_t padded_size() const { return tiles_of(size(), tile_column_multiple) * tile_column_multiple; }
};

// rows [count, size] of a head to fp32, padded with zeros to [tile, padded_size].
template <class T>
void load_rows(const T* from, std::int64_t stride, std::int64_t count, std::int64_t tile, const HeadShape& shape,
               float scale, float* to) {
  const std::int64_t size = shape.size(), padded = shape.padded_size();
  for (std::int64_t r = 0; r < count; ++r) {
    const T* source = from + r * stride;
    float* target = to + r * padded;
#pragma omp simd
    for (std::int64_t d = 0; d < size; ++d) target[d] = scale * to_float(source[d]);
    std::fill(target + size, target + padded, 0.0f);
  }
  std::fill(to + count * padded, to + tile * padded, 0.0f);
}

// [query_tile, padded_size] to [size, query_tile].
inline void transpose_queries(const float* from, const HeadShape& shape, float* to) {
  for (std::int64_t d = 0; d < shape.size(); ++d) {
    for (std::int64_t i = 0; i < query_tile; ++i) to[d * query_tile + i] = from[i * shape.padded_size() + d];
  }
}

// factors [keys, query_tile]: 0 where dropout drops the weight of key first_key + j for query row first_row + i, else
// 1 / (1 - probability). first_key is a multiple of 4.
inline void dropout_factors(const Dropout& dropout, std::int64_t head, std::int64_t first_row, std::int64_t first_key,
                            std::int64_t keys, std::int64_t queries, float* factors) {
  const DropoutOrigin origin = mask_origin(dropout.origin, dropout.key, dropout.first_row);
  const Philox philox{origin.key};
  const float kept = 1.0f / (1.0f - dropout.probability);
  for (std::int64_t j = 0; j < keys; j += 4) {
    const std::uint64_t low = static_cast<std::uint64_t>(head) << 32 | static_cast<std::uint64_t>((first_key + j) / 4);
    for (std::int64_t i = 0; i < queries; ++i) {
      const Philox::Block words = philox(low, origin.first_row + static_cast<std::uint64_t>(first_row + i));
      for (std::int64_t w = 0; w < 4; ++w) {
        factors[(j + w) * query_tile + i] =
            uniform(words[static_cast<std::size_t>(w)]) >= dropout.probability ? kept : 0;
      }
    }
    for (std::int64_t w = 0; w < 4; ++w) {
      std::fill(factors + (j + w) * query_tile + queries, factors + (j + w + 1) * query_tile, 0.0f);
    }
  }
}

// Hands out the parts of one thread's scratch; run on a null pointer it only counts.
class ScratchParts {
 public:
  explicit ScratchParts(float* data) : data_(data) {}
  float* take(std::int64_t floats) {
    float* part = data_ == nullptr ? nullptr : data_ + used_;
    used_ += (floats + 63) / 64 * 64;
    return part;
  }
  std::int64_t used() const { return used_; }

 private:
  float* data_;
  std::int64_t used_ = 0;
};

// Floats of scratch of one thread.
std::int64_t attention_forward_scratch(const HeadShape& shape);
std::int64_t attention_backward_scratch(const HeadShape& shape);

}  // namespace greyhound::cpu
