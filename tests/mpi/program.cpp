// The program under mpirun, as its users meet it: one log, one folder, the curve of one rank. Started by itself; starts
// mpirun.
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <sstream>

#include "launched.h"

using namespace greyhound;
using namespace greyhound::testing;
namespace fs = std::filesystem;

namespace {

// Six rows a step, of text in which a letter that is ignored comes in bursts.
std::string toy_config(const TemporaryFolder& folder) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += i % 7 < 2 ? "~~~~~~~~~~~~~~" : "She was fond of books; ";
  return write_file(folder / "toy.yaml",
                    "run: {seed: 3, device: cpu}\n"
                    R"(
model: {n_layer: 2, n_head: 2, n_embd: 16, block_size: 16, dropout: 0.1}
data: {tokenizer: byte, ignore_token: 126, train: )" +
                        write_file(folder / "text.txt", text) + R"(}
optimizer: {lr: 1e-2}
train: {micro_batch: 2, batch_tokens: 96, max_steps: 20}
eval: {every: 10, batches: 3}
sample: {every: 20, tokens: 5}
)");
}

struct Run {
  int code;
  std::string out, error, weights;
  std::vector<nlohmann::json> metrics;
};

Run train(const TemporaryFolder& folder, const std::string& name, int ranks,
          const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"train", toy_config(folder), "run.dir=" + folder / name};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const LaunchedProgram program(folder, {ranks, arguments});
  Run run;
  run.code = program.wait();
  run.out = program.out();
  run.error = program.error();
  run.weights = read_file(folder / name + "/model.safetensors");
  std::istringstream lines(read_file(folder / name + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) run.metrics.push_back(nlohmann::json::parse(line));
  return run;
}

void check_curve(const std::string& device, const std::vector<int>& numbers_of_ranks) {
  const TemporaryFolder folder;
  const Run one = train(folder, "one", 1, {device});
  REQUIRE(one.code == 0);
  for (const int ranks : numbers_of_ranks) {
    CAPTURE(ranks);
    const std::string name = "ranks" + std::to_string(ranks);
    const Run several = train(folder, name, ranks, {device});
    CAPTURE(several.error);
    REQUIRE(several.code == 0);
    REQUIRE(several.metrics.size() == one.metrics.size());
    for (std::size_t i = 0; i < one.metrics.size(); ++i) {
      CAPTURE(i);
      const nlohmann::json &expected = one.metrics[i], &found = several.metrics[i];
      CHECK(std::abs(found["loss"].get<double>() - expected["loss"].get<double>()) <= 1e-5);
      for (const char* key : {"step", "tokens", "epoch", "lr"}) CHECK(found[key] == expected[key]);
      CHECK(found["ranks"] == ranks);
      CHECK(found["comm_ms"].get<double>() >= (device == "run.device=cpu" ? 1e-9 : 0));  // a GPU may hide all of it
      CHECK(expected["comm_ms"] == 0);
    }
    for (const std::size_t step : {9, 19}) {
      CHECK(std::abs(several.metrics[step]["val_loss"].get<double>() - one.metrics[step]["val_loss"].get<double>()) <=
            1e-5);
    }
    CHECK(contains(several.out, concat("96 tokens a step: ", ranks, " ranks x ", 6 / ranks / (ranks == 3 ? 2 : 1))));
    const std::size_t first = several.out.find("done: ");
    CHECK(first != std::string::npos);
    CHECK(several.out.find("done: ", first + 1) == std::string::npos);

    CHECK(train(folder, name + "_again", ranks, {device}).weights == several.weights);
    // What a bucket holds changes nothing.
    CHECK(train(folder, name + "_buckets", ranks, {device, "distributed.bucket_mb=0"}).weights == several.weights);
  }
}

void check_bf16_gradients(const std::string& device) {
  const TemporaryFolder folder;
  const Run exact = train(folder, "exact", 2, {device});
  const Run rounded = train(folder, "rounded", 2, {device, "distributed.reduce_dtype=bf16"});
  CAPTURE(rounded.error);
  REQUIRE(rounded.code == 0);
  CHECK(contains(rounded.out, "reduction"));  // in the table of memory
  CHECK(rounded.weights != exact.weights);
  for (std::size_t i = 0; i < exact.metrics.size(); ++i) {
    const double expected = exact.metrics[i]["loss"].get<double>();
    CHECK(rounded.metrics[i]["loss"].get<double>() == doctest::Approx(expected).epsilon(1e-2));
  }
  CHECK(train(folder, "again", 2, {device, "distributed.reduce_dtype=bf16"}).weights == rounded.weights);
}

}  // namespace

TEST_CASE("mpirun: the losses of one rank, one log, and the same bits when repeated") {
  check_curve("run.device=cpu", {2, 3});
}
TEST_CASE("mpirun: the losses of one rank, one log, and the same bits when repeated on CUDA" *
          doctest::test_suite("cuda")) {
  if (have_two_gpus()) check_curve("run.device=cuda", {2});
}

TEST_CASE("mpirun: gradients in bf16 on the wire train as well, and repeat to the bit") {
  check_bf16_gradients("run.device=cpu");
}
TEST_CASE("mpirun: gradients in bf16 on the wire train as well, and repeat to the bit on CUDA" *
          doctest::test_suite("cuda")) {
  if (have_two_gpus()) check_bf16_gradients("run.device=cuda");
}
