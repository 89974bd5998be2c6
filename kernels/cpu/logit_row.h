// What the row kernels of the losses share: reading a row of logits block by block as fp32, and its softmax
// statistics in one pass. Internal to the CPU backend.
#pragma once

#include <greyhound/kernels/cpu/vector_math.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

namespace greyhound::cpu {

inline constexpr float infinity = std::numeric_limits<float>::infinity();

// Columns that are converted and worked on at a time: a few such blocks of fp32 stay in the first-level cache.
inline constexpr int block_columns = 1024;
// Blocks are filled up with masked columns to a multiple of this, so that loops over them have no scalar tail, and
// no result depends on how the compiler treats one.
inline constexpr int block_granule = 16;

struct alignas(64) LogitBlock {
  float values[block_columns];
};

// z = softcap(scale u); see kernels/cross_entropy.h.
struct LogitTransform {
  float scale = 1;
  float cap = 0;
  bool plain() const { return scale == 1 && cap == 0; }
};

// The first `count` elements at `from` as fp32, and masked columns up to the granule. Returns the length with those.
template <class T>
int load_block(const T* from, int count, float* block) {
  for (int j = 0; j < count; ++j) block[j] = to_float(from[j]);
  const int length = (count + block_granule - 1) / block_granule * block_granule;
  for (int j = count; j < length; ++j) block[j] = -infinity;
  return length;
}

// z of one raw logit, and with `slope` dz/du / scale. Infinite logits stay what they are: masked, or a NaN row. Both
// come from q = exp(-2 |x|), x = scale u / c: tanh = (1 - q) / (1 + q), but by its Taylor polynomial where that
// cancels, and 1 - tanh^2 = 4 q / (1 + q)^2, which never does.
inline float capped(float u, float scale, float cap, float* slope) {
  const float x = u * scale / cap;
  const float magnitude = std::fabs(x);
  const float q = vec::exp(-2.0f * magnitude);
  const float large = (1.0f - q) / (1.0f + q);
  const float small = vec::tanh_near_zero(x);  // both sides are made, then one is chosen: no branch
  const float tanh = magnitude < 0.35f ? small : std::copysign(large, x);
  if (slope != nullptr) *slope = 4.0f * q / ((1.0f + q) * (1.0f + q));
  return std::fabs(u) == infinity ? u : x != x ? x : cap * tanh;
}

// Raw logits to z, in place; `slopes` (optional) gets the softcap's derivative per column.
inline void transform_block(float* block, int length, const LogitTransform& transform, float* slopes) {
  const float scale = transform.scale, cap = transform.cap;
  if (cap > 0) {
    if (slopes != nullptr) {
#pragma omp simd
      for (int j = 0; j < length; ++j) block[j] = capped(block[j], scale, cap, &slopes[j]);
    } else {
#pragma omp simd
      for (int j = 0; j < length; ++j) block[j] = capped(block[j], scale, cap, nullptr);
    }
  } else if (scale != 1) {
    // A finite logit that scaling takes to -inf must not become a masked one.
    const float lowest = std::numeric_limits<float>::lowest();
#pragma omp simd
    for (int j = 0; j < length; ++j) {
      const float u = block[j], z = u * scale;
      block[j] = u != -infinity && z == -infinity ? lowest : z;
    }
  }
}

// Reductions of a block in fixed lanes, which are folded at the end: vectorised with or without OpenMP, and in one
// order everywhere. Terms that take more than a comparison are written to a buffer first.
inline float block_max(const float* block, int length) {
  float lanes[block_granule];
  for (float& lane : lanes) lane = -infinity;
  for (int j = 0; j < length; j += block_granule) {
    for (int lane = 0; lane < block_granule; ++lane) {
      const float z = block[j + lane];
      lanes[lane] = z > lanes[lane] ? z : lanes[lane];
    }
  }
  return *std::max_element(lanes, lanes + block_granule);
}

inline int block_unmasked(const float* block, int length) {
  int lanes[block_granule] = {};
  for (int j = 0; j < length; j += block_granule) {
    for (int lane = 0; lane < block_granule; ++lane) lanes[lane] += block[j + lane] != -infinity ? 1 : 0;
  }
  return std::accumulate(lanes, lanes + block_granule, 0);
}

inline float block_sum(const float* terms, int length) {
  float lanes[block_granule] = {};
  for (int j = 0; j < length; j += block_granule) {
    for (int lane = 0; lane < block_granule; ++lane) lanes[lane] += terms[j + lane];
  }
  return std::accumulate(lanes, lanes + block_granule, 0.0f);
}

// Sum of exp(z - M).
inline float block_exp_sum(const float* block, int length, float max) {
  LogitBlock terms;
#pragma omp simd
  for (int j = 0; j < length; ++j) terms.values[j] = vec::exp(block[j] - max);
  return block_sum(terms.values, length);
}

// Sum of exp(z - M) (M - z); terms whose exponential is 0 are 0.
inline float block_entropy_sum(const float* block, int length, float max) {
  LogitBlock terms;
#pragma omp simd
  for (int j = 0; j < length; ++j) {
    const float d = block[j] - max;
    const float bounded = d < -200.0f ? -200.0f : d;  // a NaN stays one
    terms.values[j] = vec::exp(bounded) * -bounded;
  }
  return block_sum(terms.values, length);
}

// Sum of M - z over unmasked columns.
inline float block_gap_sum(const float* block, int length, float max) {
  LogitBlock terms;
#pragma omp simd
  for (int j = 0; j < length; ++j) terms.values[j] = block[j] == -infinity ? 0.0f : max - block[j];
  return block_sum(terms.values, length);
}

// Which of the statistics that cost something to gather.
struct RowRequest {
  bool gaps = false, entropy = false, argmax = false;
};

// Softmax statistics of a row. Sums are relative to `max`. Everything that NaN or +inf logits touch is NaN.
struct RowStatistics {
  float max = -infinity;      // M
  float target_logit = 0;     // z_y
  double others = 0;          // sum of exp(z - M) without the target
  double target = 0;          // exp(z_y - M)
  double gap_sum = 0;         // sum over unmasked columns of M - z
  double entropy_sum = 0;     // sum of exp(z - M) (M - z)
  std::int64_t unmasked = 0;  // V'
  std::int32_t argmax = -1;   // of the raw logits; -1 when nothing compares greater than -inf

  double sum() const { return others + target; }
  double log_sum() const { return target == 1 ? std::log1p(others) : std::log(sum()); }
};

// One read of the row: for each block its largest logit, then its sums against the largest so far, older sums being
// rescaled when that grows. Sums within a block are fp32, over blocks fp64. target < 0: none.
template <class T>
RowStatistics row_statistics(const T* logits, std::int64_t vocab, std::int64_t target, const LogitTransform& transform,
                             RowRequest request) {
  RowStatistics row;
  float largest_raw = -infinity;
  LogitBlock storage;
  float* block = storage.values;
  for (std::int64_t begin = 0; begin < vocab; begin += block_columns) {
    const int count = static_cast<int>(std::min<std::int64_t>(block_columns, vocab - begin));
    const int length = load_block(logits + begin, count, block);
    const int unmasked = block_unmasked(block, length);
    const bool has_target = target >= begin && target < begin + count;
    if (has_target && unmasked == 0) row.target_logit = -infinity;
    if (unmasked == 0) continue;
    if (request.argmax) {
      const float raw = block_max(block, length);
      if (raw > largest_raw) {
        largest_raw = raw;
        row.argmax = static_cast<std::int32_t>(begin + (std::find(block, block + count, raw) - block));
      }
    }
    if (!transform.plain()) transform_block(block, length, transform, nullptr);

    const float max = block_max(block, length);
    int peak = -1;  // where a new maximum stands
    if (max > row.max) {
      if (row.max > -infinity) {
        const double rise = static_cast<double>(max) - row.max, factor = std::exp(-rise);
        row.entropy_sum = factor > 0 ? factor * (row.entropy_sum + rise * row.others) : 0.0 * row.others;
        row.others *= factor;
        row.gap_sum += rise * static_cast<double>(row.unmasked);
      }
      row.max = max;
      if (max < infinity) peak = static_cast<int>(std::find(block, block + length, max) - block);
    }
    row.unmasked += unmasked;
    if (request.gaps) row.gap_sum += block_gap_sum(block, length, row.max);
    if (has_target) {
      row.target_logit = block[target - begin];
      block[target - begin] = -infinity;
    }
    // Its 1 is added in fp64: in fp32 it would swallow the digits of a peaked row's small terms.
    if (peak >= 0 && begin + peak != target) {
      block[peak] = -infinity;
      row.others += 1;
    }
    row.others += block_exp_sum(block, length, row.max);
    if (request.entropy) row.entropy_sum += block_entropy_sum(block, length, row.max);
  }
  if (row.unmasked == 0) row.others = std::numeric_limits<double>::quiet_NaN();
  if (target >= 0) {
    const double depth = static_cast<double>(row.max) - row.target_logit;
    row.target = std::exp(-depth);
    if (row.target > 0) row.entropy_sum += row.target * depth;
  }
  return row;
}

}  // namespace greyhound::cpu
