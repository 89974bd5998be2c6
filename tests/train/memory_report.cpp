#include "test_files.h"
#include "toy_run.h"

#include <doctest/doctest.h>
#include <greyhound/train/memory_report.h>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

std::int64_t bytes_for(const Config& config, std::int64_t micro_batch) {
  return static_cast<std::int64_t>(memory_plan(test::test_context(), config, micro_batch).bytes());
}

}  // namespace

TEST_CASE_ON_EACH_BACKEND("memory: the largest micro-batch that fits is found by planning") {
  const Context context = test::test_context();
  const Config config = toy({"model.n_embd=48", "model.block_size=64", "train.batch_tokens=0"});
  for (const std::int64_t fits : {1, 2, 7, 39}) {
    const std::int64_t bytes = bytes_for(config, fits);
    CHECK(largest_micro_batch(context, config, 40, bytes) == fits);
    CHECK(largest_micro_batch(context, config, 40, bytes - 1) == fits - 1);
  }
}

TEST_CASE_ON_EACH_BACKEND("memory: the message says what is needed, what is free and what to change") {
  const Context context = test::test_context();
  const Config config =
      toy({"model.n_embd=384", "model.block_size=64", "train.batch_tokens=0", "loss.max_workspace_mb=40"});
  const std::int64_t free = bytes_for(config, 5);
  const std::string some = out_of_memory_message(context, config, 40, bytes_for(config, 40), free);
  CHECK(contains(some, "train.micro_batch=5 is the largest that fits (now 40)"));
  CHECK(contains(some, format_bytes(static_cast<double>(free)) + " are free"));
  CHECK(contains(some, "the most is in activations"));
  for (const char* key : {"train.micro_batch, ", "model.block_size", "model.n_embd", "run.precision=bf16"}) {
    CHECK(contains(some, key));
  }
  const std::string none = out_of_memory_message(context, config, 40, bytes_for(config, 40), 1000);
  CHECK(contains(none, "not even train.micro_batch=1 fits"));
}

TEST_CASE("memory: the advice is for what takes the most") {
  const struct {
    std::vector<std::string> overrides;
    const char* part;
  } cases[] = {
      {{"model.vocab_size=100000", "model.n_embd=3", "model.block_size=64", "train.batch_tokens=0"},
       "which model.vocab_size, loss.max_workspace_mb shrink"},
      {{"train.batch_tokens=900000000"}, "which train.batch_tokens, "},
      {{"model.n_embd=384"}, "which model.n_embd, model.n_layer, model.vocab_size shrink"},
  };
  for (const auto& test : cases) {
    const Config config = toy(test.overrides);
    const std::string message = out_of_memory_message(Context::cpu(), config, 4, bytes_for(config, 4), 1000);
    CAPTURE(message);
    CHECK(contains(message, test.part));
  }
}

TEST_CASE("memory: the rows of a step are counted, and huge ones cost nothing before that") {
  const Config small = toy({"train.batch_tokens=0"}), large = toy({"train.batch_tokens=1600000000002"});
  CHECK(host_batch_bytes(small, 2, 1) == (2 + 2) * 9 * 8);
  CHECK(host_batch_bytes(large, 2, 1) == 1600000000002 * 8 + 2 * 9 * 8);
  CHECK(bytes_for(large, 2) > 1600000000002 * 8);
  const BatchPlan batch = plan_batch(2, large.train.batch_tokens, large.model.block_size, 1);
  CHECK_NOTHROW(open_data(large, batch, 0));
}

TEST_CASE("memory: ranks of one host share its memory") {
  const auto ranks_with = [](const char* local_size) {
    const Variable mpich("MPI_LOCALNRANKS", nullptr), open_mpi("OMPI_COMM_WORLD_LOCAL_SIZE", local_size);
    return ranks_on_host(6);
  };
  CHECK(ranks_with(nullptr) == 6);
  CHECK(ranks_with("2") == 2);
  CHECK(ranks_with("12") == 6);
}

TEST_CASE("memory: a loss workspace that is too small is named by its key") {
  const auto error = [](const char* mebibytes) {
    return error_of([&] {
      memory_plan(Context::cpu(), toy({"model.vocab_size=1000000", concat("loss.max_workspace_mb=", mebibytes)}), 2);
    });
  };
  const std::string message = error("1");
  CAPTURE(message);
  CHECK(contains(message, "2: loss.max_workspace_mb 1 MiB is too small"));
  const std::string start = "the smallest that works is ";
  REQUIRE(contains(message, start));
  const std::string least = std::to_string(std::stoi(message.substr(message.find(start) + start.size())));
  CHECK(error(least.c_str()) == "no error");
  CHECK(contains(error(std::to_string(std::stoi(least) - 1).c_str()), "is too small"));
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
