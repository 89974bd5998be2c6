// Every rank runs these; each checks what it got against what all ranks must have put in.
#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "ranks.h"

using namespace greyhound;
using namespace greyhound::testing;

namespace {

// Around the size of the pieces that a long vector is cut into, and shorter than the number of ranks.
const std::int64_t lengths[] = {0, 1, 2, 3, 7, 1000, 262143, 262145, 1000003};

float contribution(std::int64_t i, int rank) { return static_cast<float>((i * 7 + rank * 13) % 101) * 0.1f; }

}  // namespace

TEST_CASE("communicator: as many ranks as the launcher started") {
  CHECK(ranks().size() == launched_ranks());
  CHECK(ranks().rank() < ranks().size());
}

TEST_CASE("all_reduce: sums in the order of the ranks, to the bit") {
  const Context context = Context::cpu();
  for (const std::int64_t n : lengths) {
    std::vector<float> values(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = contribution(i, ranks().rank());
    ranks().all_reduce(context, tensor(values.data(), DType::fp32, {n}));
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      float expected = contribution(i, 0);
      for (int r = 1; r < ranks().size(); ++r) expected += contribution(i, r);
      wrong += values[static_cast<std::size_t>(i)] != expected;
    }
    CHECK_MESSAGE(wrong == 0, "length ", n);
  }
}

TEST_CASE("all_reduce: the largest of int64, and NaN stays where it was put in") {
  const Context context = Context::cpu();
  std::int64_t value = 100 + ranks().rank();
  ranks().all_reduce(context, tensor(&value, DType::int64, {1}), ReduceOp::max);
  CHECK(value == 100 + ranks().size() - 1);

  float numbers[2] = {1.0f, ranks().rank() == 0 ? std::numeric_limits<float>::quiet_NaN() : 1.0f};
  ranks().all_reduce(context, tensor(numbers, DType::fp32, {2}));
  CHECK(numbers[0] == static_cast<float>(ranks().size()));
  CHECK(numbers[1] != numbers[1]);
}

TEST_CASE("reduce_scatter, then all_gather: the parts of the sum, and the whole of it") {
  const Context context = Context::cpu();
  const int size = ranks().size();
  for (const std::int64_t n : lengths) {
    std::vector<double> input(static_cast<std::size_t>(n * size)), part(static_cast<std::size_t>(n)), all(input.size());
    for (std::size_t i = 0; i < input.size(); ++i) input[i] = static_cast<double>(i) + ranks().rank();
    ranks().reduce_scatter(context, tensor(input.data(), DType::fp64, {n * size}),
                           tensor(part.data(), DType::fp64, {n}));
    ranks().all_gather(context, tensor(part.data(), DType::fp64, {n}), tensor(all.data(), DType::fp64, {n * size}));
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < all.size(); ++i)
      wrong += all[i] != size * static_cast<double>(i) + size * (size - 1) / 2;
    CHECK_MESSAGE(wrong == 0, "length ", n);
  }
}

TEST_CASE("broadcast: everybody has the last rank's values") {
  const Context context = Context::cpu();
  std::vector<std::int32_t> values(300000, ranks().rank());
  ranks().broadcast(context, tensor(values.data(), DType::int32, {300000}), ranks().size() - 1);
  for (const std::int32_t value : {values.front(), values.back()}) CHECK(value == ranks().size() - 1);
  ranks().barrier(context);
}

TEST_CASE("all_reduce: bf16 is summed in fp32 in the order of the ranks, and rounded once") {
  const Context context = Context::cpu();
  const std::int64_t n = 600001;
  std::vector<bf16> values(static_cast<std::size_t>(n));
  const auto value_of = [](std::int64_t i, int rank) { return from_float<bf16>(contribution(i, rank)); };
  for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = value_of(i, ranks().rank());
  ranks().all_reduce(context, tensor(values.data(), DType::bf16, {n}));
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    float expected = to_float(value_of(i, 0));
    for (int r = 1; r < ranks().size(); ++r) expected += to_float(value_of(i, r));
    wrong += values[static_cast<std::size_t>(i)].bits != from_float<bf16>(expected).bits;
  }
  CHECK(wrong == 0);
}

TEST_CASE("start_all_reduce: several at once, in pieces, have the bits of one all_reduce") {
  const Context context = Context::cpu();
  const std::int64_t n = 700003, cuts[] = {0, 5, 64, 300000, 300001, n};
  std::vector<float> whole(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) whole[static_cast<std::size_t>(i)] = contribution(i, ranks().rank());
  std::vector<float> pieces = whole;
  ranks().all_reduce(context, tensor(whole.data(), DType::fp32, {n}));

  ranks().take_exposed_ms();
  for (std::size_t i = 0; i + 1 < std::size(cuts); ++i) {
    ranks().start_all_reduce(context, tensor(pieces.data() + cuts[i], DType::fp32, {cuts[i + 1] - cuts[i]}));
  }
  ranks().join(context);
  CHECK(pieces == whole);
  CHECK(ranks().take_exposed_ms() >= 0);
  CHECK(ranks().take_exposed_ms() == 0);

  // An operation that is not started waits for those that are.
  std::vector<float> first(1000, 1.0f);
  float second = 1;
  ranks().start_all_reduce(context, tensor(first.data(), DType::fp32, {1000}));
  ranks().all_reduce(context, tensor(&second, DType::fp32, {1}));
  CHECK(first[999] == static_cast<float>(ranks().size()));
  CHECK(second == static_cast<float>(ranks().size()));
  ranks().join(context);
  CHECK_NOTHROW(ranks().check());
  CHECK_FALSE(ranks().failed());
}

TEST_CASE("local rank: ranks of one host are numbered from 0") {
  const LocalRank local = local_rank(ranks());
  CHECK(local.rank == ranks().rank());  // the tests run on one host
  CHECK(local.size == ranks().size());
  if (cuda_device_count() == 0) CHECK(choose_gpu(ranks()) == (ranks().size() == 1 ? 0 : -1));
}

TEST_CASE("collectives: wrong arguments are refused before anything is sent") {
  const Context context = Context::cpu();
  float value = 0;
  CHECK_THROWS_AS(ranks().broadcast(context, tensor(&value, DType::fp32, {1}), ranks().size()), Error);
  if (ranks().size() > 1) {
    std::uint16_t bits = 0;
    CHECK_THROWS_AS(ranks().all_reduce(context, tensor(&bits, DType::fp16, {1})), Error);
    CHECK_THROWS_AS(ranks().all_reduce(context, tensor(&bits, DType::bf16, {1}), ReduceOp::max), Error);
    CHECK_THROWS_AS(ranks().start_all_reduce(context, tensor(&bits, DType::fp16, {1})), Error);
  }
}
