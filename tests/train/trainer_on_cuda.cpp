// What a GPU trains beside what the CPU trains.
#include "toy_run.h"

#include <doctest/doctest.h>
#include <tests/differences.h>

#include <algorithm>
#include <cmath>
#include <utility>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

std::vector<double> losses(const Config& config, int steps) {
  ToyRun run(config);
  std::vector<double> curve;
  for (int step = 0; step < steps; ++step) curve.push_back(run.trainer->step().loss);
  return curve;
}

std::vector<double> losses_on_device(const Config& config, int steps) {
  const test::BackendScope scope(test::device_context());
  return losses(config, steps);
}

}  // namespace

TEST_CASE("trainer: 50 steps on CUDA have the losses of the CPU" * doctest::test_suite("cuda")) {
  if (!test::have_device()) return;
  const std::pair<const char*, double> cases[] = {{"fp32", 1e-4}, {"bf16", 2e-2}};
  for (const auto& [precision, tolerance] : cases) {
    for (const char* dropout : {"0", "0.1"}) {
      CAPTURE(std::string(precision));
      CAPTURE(dropout);
      const Config config = toy({concat("run.precision=", precision), concat("model.dropout=", dropout),
                                 "train.max_steps=50", "optimizer.lr=3e-3", "loss.z_loss_multiplier=1e-4"});
      const std::vector<double> cpu = losses(config, 50), gpu = losses_on_device(config, 50);
      REQUIRE(gpu.size() == cpu.size());
      CHECK(test::largest_of(cpu.size(), [&](std::size_t i) { return std::abs(gpu[i] - cpu[i]) / cpu[i]; }) <=
            tolerance);
      CHECK(cpu.back() < cpu.front());
    }
  }
}

TEST_CASE("trainer: more than 2^31 logits and attention weights on CUDA give what half of them at a time give" *
          doctest::test_suite("cuda")) {
  if (!test::have_device() || test::cpu_as_device()) return;
  const test::BackendScope scope(test::device_context());
  // 66 x 1024 rows: times 50,304 classes, and times 32 heads and 1024 positions.
  const auto config = [](const char* micro_batch) {
    return toy({concat("train.micro_batch=", micro_batch), "train.batch_tokens=67584", "model.block_size=1024",
                "model.vocab_size=50304", "model.n_layer=1", "model.n_head=32", "model.n_embd=512", "sample.every=0",
                "run.precision=bf16", "model.dropout=0",
                // A tied head favours the token that was read, which synthetic text often repeats.
                "model.tie_embeddings=false"});
  };
  if (available_memory(test::test_device()) < std::int64_t{24} << 30) {
    MESSAGE("skipped: needs 24 GiB of free memory");
    return;
  }
  struct Outcome {
    StepResult result;
    std::vector<float> gradients;
  };
  const auto outcome = [&](const char* micro_batch) {
    ToyRun run(config(micro_batch));
    run.trainer->compute_gradients();
    std::vector<float> gradients = run.gradients();
    return Outcome{run.trainer->apply_gradients(), std::move(gradients)};
  };
  const Outcome whole = outcome("66"), halves = outcome("33");
  CHECK(whole.result.loss == doctest::Approx(halves.result.loss).epsilon(1e-5));
  CHECK(whole.result.loss == doctest::Approx(std::log(50304.0)).epsilon(0.02));  // untrained
  REQUIRE(whole.gradients.size() == halves.gradients.size());
  const double largest = test::largest_magnitude(whole.gradients);
  CHECK(largest > 0);
  CHECK(test::largest_difference(whole.gradients, halves.gradients) <= 1e-2 * largest);
}
