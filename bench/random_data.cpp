#include "random_data.h"

#include <greyhound/core/memory.h>
#include <greyhound/core/rng.h>

#include <algorithm>
#include <vector>

namespace greyhound::bench {

namespace {

// A multiple of 8, so that copies are aligned to 16 bytes, and of no vocabulary, so that rows differ.
constexpr std::int64_t block_elements = 8 * 131101;

void repeat(const Context& context, const Tensor& to, std::int64_t filled) {
  while (filled < to.elements()) {
    const std::int64_t count = std::min(filled, to.elements() - filled);
    copy(context, to.slice(filled, {count}), to.slice(0, {count}));
    filled += count;
  }
}

}  // namespace

void fill_random(const Context& context, const Tensor& to, float scale, std::uint64_t seed) {
  const std::int64_t block = std::min(to.elements(), block_elements);
  const Philox random{mix_key(seed, 0)};
  dispatch(to.dtype, "fill_random", [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::vector<T> host(static_cast<std::size_t>(block));
    for (std::int64_t i = 0; i < block; ++i) {
      const Philox::Block words = random(static_cast<std::uint64_t>(i), 0);
      // Irwin-Hall: the sum of 4 uniforms, centred and scaled to unit variance, is close to a normal.
      const float sum = uniform(words[0]) + uniform(words[1]) + uniform(words[2]) + uniform(words[3]);
      host[static_cast<std::size_t>(i)] = from_float<T>(scale * (sum - 2.0f) * 1.7320508f);
    }
    copy_bytes(context, to.data, to.device, host.data(), Device::cpu(), host.size() * sizeof(T));
    context.synchronize();
  });
  repeat(context, to, block);
  context.synchronize();
}

void fill_random_indices(const Context& context, const Tensor& to, std::int64_t vocab, std::uint64_t seed) {
  std::vector<std::int32_t> host(static_cast<std::size_t>(to.elements()));
  for (std::size_t i = 0; i < host.size(); ++i) {
    host[i] = static_cast<std::int32_t>(mix_key(seed, i) % static_cast<std::uint64_t>(vocab));
  }
  copy_bytes(context, to.data, to.device, host.data(), Device::cpu(), to.bytes());
  context.synchronize();
}

}  // namespace greyhound::bench
