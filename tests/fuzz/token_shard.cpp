#include <greyhound/train/token_shards.h>

#include "fuzz_input.h"

#include <vector>

using namespace greyhound;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzzing::InputFile file(data, size);
  fuzzing::expect_one_clear_line([&] {
    looks_like_token_shard(file.path());
    const TokenShard shard = read_shard_header(file.path());
    const TokenShards shards({shard}, 3, 2);
    std::vector<std::int32_t> window(4);
    for (std::int64_t row = 0; row < shards.sequential_rows(); ++row) shards.sequential_row(row, window);
    for (std::int64_t step = 0; step < shards.steps(); ++step) shards.training_row(step, 1, window);
  });
  return 0;
}
