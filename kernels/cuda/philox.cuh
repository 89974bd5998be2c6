// core/rng.h's Philox on the device: the same words. Internal to the CUDA backend.
#pragma once

#include <cstdint>

namespace greyhound::cuda {

__device__ inline uint4 philox(std::uint64_t key, std::uint64_t low, std::uint64_t high) {
  unsigned c0 = static_cast<unsigned>(low), c1 = static_cast<unsigned>(low >> 32);
  unsigned c2 = static_cast<unsigned>(high), c3 = static_cast<unsigned>(high >> 32);
  unsigned k0 = static_cast<unsigned>(key), k1 = static_cast<unsigned>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = static_cast<std::uint64_t>(0xD2511F53u) * c0;
    const std::uint64_t p1 = static_cast<std::uint64_t>(0xCD9E8D57u) * c2;
    c0 = static_cast<unsigned>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<unsigned>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<unsigned>(p1);
    c3 = static_cast<unsigned>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return make_uint4(c0, c1, c2, c3);
}

}  // namespace greyhound::cuda
