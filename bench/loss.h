// Benchmarks of the loss module against the bare work: a copy of the same bytes, and the products of the unchunked
// shape.
#pragma once

#include "timing.h"

#include <greyhound/core/dtype.h>

namespace greyhound::bench {

struct LossShape {
  std::int64_t tokens, hidden, vocab;
};

std::vector<Row> loss(const Context& context, const std::vector<LossShape>& shapes, DType dtype);

}  // namespace greyhound::bench
