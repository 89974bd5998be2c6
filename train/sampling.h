// One token from a row of logits.
#pragma once

#include <cstdint>
#include <span>

namespace greyhound {

struct SamplingOptions {
  double temperature = 1;  // >= 0; 0: the most likely token
  std::int64_t top_k = 0;  // only the k largest logits take part; 0: all
};

// Draws from softmax(logits / temperature), held to the top k, by inversion with `uniform` in [0, 1): the same logits
// and number give the same token. Equal logits rank by index, lower first. NaN counts as masked, as -inf does; throws a
// runtime Error when nothing finite is left.
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, double uniform);

}  // namespace greyhound
