// Random contents of benchmark tensors: zeros, and rows that repeat, can be faster than real data.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/tensor.h>

namespace greyhound::bench {

// Numbers of about a normal distribution with standard deviation `scale`, in a floating-point tensor. Draws a million
// of them on the host and repeats them by copies on the device.
void fill_random(const Context& context, const Tensor& to, float scale, std::uint64_t seed);

// int32 class indices, uniform in [0, vocab).
void fill_random_indices(const Context& context, const Tensor& to, std::int64_t vocab, std::uint64_t seed);

}  // namespace greyhound::bench
