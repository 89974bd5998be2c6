#include "test_files.h"
#include "toy_run.h"

#include <doctest/doctest.h>
#include <greyhound/train/memory_report.h>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

std::int64_t bytes_for(const Config& config, std::int64_t micro_batch) {
  return static_cast<std::int64_t>(TrainingBuffers(Context::cpu(), config, micro_batch).plan().bytes());
}

}  // namespace

TEST_CASE("memory: the largest micro-batch that fits is found by planning") {
  const Context context = Context::cpu();
  const Config config = toy({"model.n_embd=48", "model.block_size=64", "train.batch_tokens=0"});
  for (const std::int64_t fits : {1, 2, 7, 39}) {
    const std::int64_t bytes = bytes_for(config, fits);
    CHECK(largest_micro_batch(context, config, 40, bytes) == fits);
    CHECK(largest_micro_batch(context, config, 40, bytes - 1) == fits - 1);
  }
}

TEST_CASE("memory: the message says what is needed, what is free and what to change") {
  const Context context = Context::cpu();
  const Config config =
      toy({"model.n_embd=48", "model.block_size=64", "train.batch_tokens=0", "loss.max_workspace_mb=1"});
  const std::int64_t free = bytes_for(config, 5);
  const std::string some = out_of_memory_message(context, config, 40, bytes_for(config, 40), free);
  CHECK(contains(some, "train.micro_batch=5 is the largest that fits (now 40)"));
  CHECK(contains(some, format_bytes(static_cast<double>(free)) + " are free"));
  for (const char* key : {"loss.max_workspace_mb", "model.block_size", "model.n_embd", "run.precision=bf16"}) {
    CHECK(contains(some, key));
  }
  const std::string none = out_of_memory_message(context, config, 40, bytes_for(config, 40), 1000);
  CHECK(contains(none, "not even train.micro_batch=1 fits"));
}

TEST_CASE("memory: the plan has a region for each kind of buffer") {
  const auto region_names = [](const Config& config) {
    std::string names;
    for (const ArenaPlan::Region& region : TrainingBuffers(Context::cpu(), config, 2).plan().regions()) {
      names += region.name + ";";
    }
    return names;
  };
  CHECK(region_names(toy()) == "parameters;gradients;optimiser;activations;loss workspace;generation;batch;");
  CHECK(region_names(toy({"run.precision=bf16", "sample.every=0"})) ==
        "parameters;working weights;gradients;optimiser;activations;loss workspace;batch;");
}
