#include <greyhound/core/rng.h>

#include <doctest/doctest.h>

#include <set>

using namespace greyhound;

TEST_CASE("Philox4x32-10: the known answers published with Random123") {
  struct Answer {
    std::uint32_t counter[4], key[2];
    Philox::Block expected;
  };
  const Answer answers[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  const auto join = [](std::uint32_t low, std::uint32_t high) { return std::uint64_t{high} << 32 | low; };
  for (const Answer& a : answers) {
    const Philox philox{join(a.key[0], a.key[1])};
    CHECK(philox(join(a.counter[0], a.counter[1]), join(a.counter[2], a.counter[3])) == a.expected);
  }
}

TEST_CASE("uniform: in [0, 1), its mean near 1/2") {
  CHECK(uniform(0) == 0);
  CHECK(uniform(~0u) == 1 - 0x1p-24f);
  CHECK(uniform(1u << 31) == 0.5f);
  double sum = 0;
  const Philox philox{mix_key(1, 2)};
  for (std::uint64_t i = 0; i < 25000; ++i) {
    for (std::uint32_t word : philox(i, 0)) sum += uniform(word);
  }
  CHECK(sum / 100000 == doctest::Approx(0.5).epsilon(0.01));
}

TEST_CASE("mix_key: neighbouring seeds and streams give different keys") {
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    for (std::uint64_t stream = 0; stream < 100; ++stream) keys.insert(mix_key(seed, stream));
  }
  CHECK(keys.size() == 10000);
  // The first outputs of the splitmix64 generator started at 0.
  CHECK(mix_key(0, 0) == 0xe220a8397b1dcdafull);
  CHECK(mix_key(0, 1) == 0x6e789e6aa1b965f4ull);
}
