#include <greyhound/core/error.h>
#include <greyhound/train/batch_plan.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace greyhound {

namespace {

// The largest divisor of `number` up to `most`. By prime factors: counting down from `most` takes seconds for numbers
// near 2^53.
std::int64_t largest_divisor(std::int64_t number, std::int64_t most) {
  std::vector<std::int64_t> divisors = {1};
  const auto multiply = [&](std::int64_t prime, int times) {
    const std::size_t before = divisors.size();
    std::int64_t power = 1;
    for (int i = 0; i < times; ++i) {
      power *= prime;
      for (std::size_t k = 0; k < before; ++k) divisors.push_back(divisors[k] * power);
    }
  };
  std::int64_t rest = number;
  for (std::int64_t factor = 2; factor <= rest / factor; factor += factor == 2 ? 1 : 2) {
    int times = 0;
    for (; rest % factor == 0; rest /= factor) ++times;
    if (times > 0) multiply(factor, times);
  }
  if (rest > 1) multiply(rest, 1);
  std::int64_t largest = 1;
  for (const std::int64_t divisor : divisors) {
    if (divisor <= most) largest = std::max(largest, divisor);
  }
  return largest;
}

}  // namespace

BatchPlan plan_batch(std::int64_t micro_batch, std::int64_t batch_tokens, std::int64_t block_size, std::int64_t ranks) {
  require(block_size >= 1, "model.block_size must be at least 1, got ", block_size);
  require(ranks >= 1, "the number of ranks must be at least 1, got ", ranks);
  require(micro_batch >= 1, "train.micro_batch must be at least 1, got ", micro_batch);
  require(batch_tokens >= 0, "train.batch_tokens must be 0 or more, got ", batch_tokens);
  require(batch_tokens % block_size == 0, "train.batch_tokens ", batch_tokens, " is not a whole number of rows of ",
          block_size, " tokens (model.block_size): ", batch_tokens / block_size * block_size, " and ",
          (batch_tokens / block_size + 1) * block_size, " are");

  const std::int64_t rows = batch_tokens == 0 ? micro_batch * ranks : batch_tokens / block_size;
  require(rows % ranks == 0, "train.batch_tokens ", batch_tokens, " = ", rows, " rows of ", block_size,
          " tokens do not divide among ", ranks, " ranks: no micro-batch up to train.micro_batch ", micro_batch,
          " fits; ", ranks, " x ", std::max<std::int64_t>(rows / ranks, 1),
          " rows = ", ranks * std::max<std::int64_t>(rows / ranks, 1) * block_size, " tokens would");

  BatchPlan plan;
  plan.block_size = block_size;
  plan.ranks = ranks;
  const std::int64_t rows_per_rank = rows / ranks;
  plan.micro_batch = largest_divisor(rows_per_rank, micro_batch);
  plan.accumulation = rows_per_rank / plan.micro_batch;
  return plan;
}

}  // namespace greyhound
