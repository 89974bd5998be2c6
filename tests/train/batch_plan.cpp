#include <doctest/doctest.h>
#include <greyhound/core/error.h>
#include <greyhound/train/batch_plan.h>

#include <string>

using namespace greyhound;

TEST_CASE("plan_batch: the largest micro-batch up to the ceiling that divides a rank's rows") {
  const struct {
    std::int64_t ceiling, batch_tokens, block_size, ranks, micro_batch, accumulation;
  } cases[] = {
      {8, 8 * 64, 64, 1, 8, 1},
      {2, 8 * 64, 64, 1, 2, 4},
      {3, 8 * 64, 64, 1, 2, 4},  // 3 does not divide 8
      {7, 12 * 64, 64, 1, 6, 2},
      {12, 12 * 64, 64, 3, 4, 1},  // never more than a rank has
      {5, 7 * 16, 16, 1, 1, 7},    // a prime number of rows
      {100, 1, 1, 1, 1, 1},
      {12, 0, 64, 1, 12, 1},  // batch_tokens 0: one micro-batch a rank
      {12, 0, 64, 5, 12, 1},
      {64, 524288, 1024, 8, 64, 1},
      {64, 524288, 1024, 1, 64, 8},
      {48, 524288, 1024, 1, 32, 16},
      // Counting down to the divisor would take seconds.
      {1073741823, 9007199254740976, 16, 1, 0, 0},
      {1 << 30, 1125899906842597, 1, 1, 1, 1125899906842597},  // a prime number near 2^50
      {1 << 29, std::int64_t{1} << 52, 1, 1, 1 << 29, 1 << 23},
  };
  for (const auto& test : cases) {
    CAPTURE(test.ceiling);
    CAPTURE(test.batch_tokens);
    const BatchPlan plan = plan_batch(test.ceiling, test.batch_tokens, test.block_size, test.ranks);
    if (test.micro_batch > 0) {
      CHECK(plan.micro_batch == test.micro_batch);
      CHECK(plan.accumulation == test.accumulation);
    }
    CHECK(plan.micro_batch <= test.ceiling);
    CHECK(plan.rows() * test.block_size == plan.tokens());
    CHECK(plan.rows_per_rank() * test.ranks == plan.rows());
    if (test.batch_tokens > 0) CHECK(plan.tokens() == test.batch_tokens);
  }
}

TEST_CASE("plan_batch: numbers that do not fit are refused with the numbers") {
  const auto message = [](std::int64_t ceiling, std::int64_t tokens, std::int64_t block, std::int64_t ranks) {
    try {
      plan_batch(ceiling, tokens, block, ranks);
    } catch (const Error& error) {
      CHECK(error.exit_code() == 2);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const std::string partial = message(4, 100, 64, 1);
  CHECK(partial.find("train.batch_tokens 100") == 0);
  CHECK(partial.find("64 and 128 are") != std::string::npos);

  const std::string ranks = message(4, 8 * 64, 64, 3);
  CHECK(ranks.find("512 = 8 rows") != std::string::npos);
  CHECK(ranks.find("among 3 ranks") != std::string::npos);
  CHECK(ranks.find("train.micro_batch 4") != std::string::npos);
  CHECK(ranks.find("3 x 2 rows = 384 tokens would") != std::string::npos);

  CHECK(message(4, 64, 64, 2).find("2 x 1 rows = 128") != std::string::npos);
  CHECK(message(0, 64, 64, 1).find("train.micro_batch") == 0);
  CHECK(message(1, -64, 64, 1).find("train.batch_tokens") == 0);
  CHECK(message(1, 64, 0, 1).find("model.block_size") == 0);
}
