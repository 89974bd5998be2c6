// Dropout on the device: the same elements as on the CPU, from the same counters. Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/elementwise.h>

#include <cmath>
#include <cstring>

namespace greyhound::cuda {

struct DropoutMask {
  std::uint64_t key, first_row;
  const DropoutOrigin* origin;  // see Dropout
  std::uint32_t threshold;      // a word is kept from here on
  float scale;

  // out = dropout(in) for columns [first, first + size) of row `row`; first is a multiple of 4. out may be in.
  template <int size>
  __device__ void apply(std::int64_t row, int first, const float (&in)[size], float (&out)[size]) const {
    static_assert(size % 4 == 0, "four columns are drawn at once");
    const DropoutOrigin drawn = mask_origin(origin, key, first_row);
#pragma unroll
    for (int group = 0; group < size / 4; ++group) {
      const Philox::Block block = Philox{drawn.key}(static_cast<std::uint64_t>(first / 4 + group),
                                                    drawn.first_row + static_cast<std::uint64_t>(row));
      std::uint32_t words[4];
      memcpy(words, &block, sizeof words);
#pragma unroll
      for (int i = 0; i < 4; ++i) out[4 * group + i] = words[i] >= threshold ? in[4 * group + i] * scale : 0.0f;
    }
  }
};

// uniform(word) >= p says (word >> 8) >= p 2^24; compared as integers, no word is converted. p < 1 has a float's 24
// digits, so the threshold fits.
inline DropoutMask dropout_mask(const Dropout& dropout) {
  DropoutMask mask{};
  mask.key = dropout.key;
  mask.first_row = dropout.first_row;
  mask.origin = dropout.origin;
  mask.threshold = static_cast<std::uint32_t>(std::ceil(double{dropout.probability} * 16777216.0)) << 8;
  mask.scale = 1.0f / (1.0f - dropout.probability);
  return mask;
}

}  // namespace greyhound::cuda
