#include <greyhound/core/error.h>
#include <greyhound/train/batch_plan.h>

#include <algorithm>

namespace greyhound {

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
  plan.micro_batch = std::min(micro_batch, rows_per_rank);
  while (rows_per_rank % plan.micro_batch != 0) --plan.micro_batch;
  plan.accumulation = rows_per_rank / plan.micro_batch;
  return plan;
}

}  // namespace greyhound
