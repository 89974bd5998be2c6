// Philox4x32-10, a counter-based generator: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The value at a counter depends on nothing but
// key and counter, so masks can be remade in backward, and neither the number of ranks, nor threads, nor
// micro-batches matters to what is drawn for a given row.
#pragma once

#include <greyhound/core/dtype.h>

#include <array>
#include <cstdint>

namespace greyhound {

struct Philox {
  using Block = std::array<std::uint32_t, 4>;

  std::uint64_t key = 0;

  // The four 32-bit words at a 128-bit counter.
  GREYHOUND_HOST_DEVICE Block operator()(std::uint64_t low, std::uint64_t high) const {
    std::uint32_t c0 = static_cast<std::uint32_t>(low), c1 = static_cast<std::uint32_t>(low >> 32);
    std::uint32_t c2 = static_cast<std::uint32_t>(high), c3 = static_cast<std::uint32_t>(high >> 32);
    std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p0 = 0xD2511F53ull * c0;
      const std::uint64_t p1 = 0xCD9E8D57ull * c2;
      const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
      const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c1 = static_cast<std::uint32_t>(p1);
      c3 = static_cast<std::uint32_t>(p0);
      c0 = n0;
      c2 = n2;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return {c0, c1, c2, c3};
  }
};

// A 32-bit word as a number in [0, 1), a multiple of 2^-24.
GREYHOUND_HOST_DEVICE inline float uniform(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

// A 64-bit key from a seed and a stream number (splitmix64's finaliser), so that the streams of one
// seed are unrelated.
GREYHOUND_HOST_DEVICE inline std::uint64_t mix_key(std::uint64_t seed, std::uint64_t stream) {
  std::uint64_t x = seed + 0x9E3779B97F4A7C15ull * (stream + 1);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace greyhound
