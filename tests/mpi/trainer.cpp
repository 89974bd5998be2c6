// Data parallel training, run by every rank: each compares what the ranks made with the run of one rank over the same
// batch, which it makes for itself.
#include <doctest/doctest.h>
#include <greyhound/core/rng.h>
#include <greyhound/train/evaluate.h>
#include <tests/differences.h>
#include <tests/train/test_files.h>
#include <tests/train/toy_run.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ranks.h"

using namespace greyhound;
using namespace greyhound::testing;

namespace {

// Six rows a step, which 1, 2 and 3 ranks divide, in micro-batches of one row: accumulation 6, 3 and 2. Token 0 is
// ignored as a target.
Config toy_of_ranks(const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides = {"train.batch_tokens=54", "train.micro_batch=1", "data.ignore_token=0"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return toy(overrides);
}

struct FirstStep {
  std::vector<float> gradients;
  StepResult result;
};

FirstStep first_step(const Config& config, Communicator* communicator) {
  ToyRun run(config, 1, communicator);
  FirstStep step;
  run.trainer->compute_gradients();
  step.gradients = run.gradients();
  step.result = run.trainer->apply_gradients();
  return step;
}

struct Curve {
  std::vector<double> losses, norms;
  std::vector<float> weights;
  bool operator==(const Curve&) const = default;
};

Curve train(const Config& config, int steps, Communicator* communicator) {
  ToyRun run(config, 1, communicator);
  Curve curve;
  for (int step = 0; step < steps; ++step) {
    const StepResult result = run.trainer->step();
    curve.losses.push_back(result.loss);
    curve.norms.push_back(result.grad_norm);
  }
  curve.weights = run.weights();
  return curve;
}

// Of the largest |expected|.
double relative_difference(const std::vector<float>& found, const std::vector<float>& expected) {
  REQUIRE(found.size() == expected.size());
  return test::largest_difference(found, expected) / test::largest_magnitude(expected);
}

std::vector<std::int64_t> gathered(std::int64_t value) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(ranks().size()));
  ranks().all_gather(Context::cpu(), tensor(static_cast<const void*>(&value), DType::int64, {1}),
                     tensor(all.data(), DType::int64, {ranks().size()}));
  return all;
}

// A shard in which a share of the tokens, at odd places, is token 0.
std::string shard_with_zeros(const TemporaryFolder& folder, double share, std::size_t tokens) {
  std::vector<std::uint16_t> ids;
  for (std::size_t i = 0; i < tokens; ++i) {
    const double draw = uniform(Philox{11}(i, 0)[0]);
    ids.push_back(draw < share ? 0 : static_cast<std::uint16_t>(1 + i * i % 16));
  }
  return write_file(folder / "shard.bin", shard_bytes(ids));
}

}  // namespace

RANKS_TEST_CASE("ranks: gradients of a step and the logged loss are those of one rank with the same batch") {
  for (const char* tied : {"model.tie_embeddings=true", "model.tie_embeddings=false"}) {
    CAPTURE(tied);
    const Config config = toy_of_ranks({tied, "loss.z_loss_multiplier=1e-3"});
    const FirstStep one = first_step(config, nullptr), all = first_step(config, &training_ranks());
    CHECK(relative_difference(all.gradients, one.gradients) <= 1e-6f);
    CHECK(std::abs(all.result.loss - one.result.loss) <= 1e-6);
    CHECK(std::abs(*all.result.z_loss - *one.result.z_loss) <= 1e-6);
    CHECK(all.result.valid_targets == one.result.valid_targets);
    CHECK(all.result.grad_norm == doctest::Approx(one.result.grad_norm).epsilon(1e-6));
  }
}

RANKS_TEST_CASE("ranks: buckets of any size give the same bits") {
  for (const char* tied : {"model.tie_embeddings=true", "model.tie_embeddings=false"}) {
    for (const char* dtype : {"distributed.reduce_dtype=fp32", "distributed.reduce_dtype=bf16"}) {
      CAPTURE(tied);
      CAPTURE(dtype);
      const auto gradients = [&](const char* bucket_mb) {
        return first_step(toy_of_ranks({tied, dtype, bucket_mb}), &training_ranks()).gradients;
      };
      CHECK(gradients("distributed.bucket_mb=0") == gradients("distributed.bucket_mb=1000"));
    }
  }
}

RANKS_TEST_CASE("ranks: losses over 20 steps are those of one rank, with unequal numbers of valid targets") {
  const Config config = toy_of_ranks();
  ToyRun run(config, 1, &training_ranks());
  const std::vector<std::int64_t> valid = gathered(run.data.train->next().valid_targets);
  if (ranks().size() > 1)
    CHECK(*std::max_element(valid.begin(), valid.end()) > *std::min_element(valid.begin(), valid.end()));

  const Curve one = train(config, 20, nullptr), all = train(config, 20, &training_ranks());
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(all.losses[i] - one.losses[i]) <= 1e-5);
  }
  CHECK(one.losses.front() > one.losses.back());
}

RANKS_TEST_CASE("ranks: the same bits when repeated, and on every rank") {
  for (const char* precision : {"run.precision=fp32", "run.precision=bf16"}) {
    CAPTURE(precision);
    const Config config = toy_of_ranks({precision});
    const Curve first = train(config, 6, &training_ranks());
    CHECK(train(config, 6, &training_ranks()) == first);

    std::vector<float> of_root = first.weights;
    const auto count = static_cast<std::int64_t>(of_root.size());
    ranks().broadcast(Context::cpu(), tensor(of_root.data(), DType::fp32, {count}));
    CHECK(of_root == first.weights);
  }
}

RANKS_TEST_CASE("ranks: one batch or several micro-batches, whatever share of the targets is ignored") {
  for (const double share : {0.0, 0.2, 0.6}) {
    CAPTURE(share);
    const TemporaryFolder folder;
    const std::string shard = shard_with_zeros(folder, share, 500);
    // 24 rows: 24 x 1 micro-batch on one rank; up to 24, 12 or 8 rows and accumulation on several.
    const auto config = [&](const char* micro_batch) {
      return toy({"data.train=" + shard, "data.val=", "data.ignore_token=0", "model.dropout=0",
                  "train.batch_tokens=216", micro_batch});
    };
    const FirstStep whole = first_step(config("train.micro_batch=24"), nullptr);
    CHECK((whole.result.valid_targets < 216) == (share > 0));
    for (const char* micro_batch : {"train.micro_batch=24", "train.micro_batch=2", "train.micro_batch=5"}) {
      CAPTURE(micro_batch);
      const FirstStep parts = first_step(config(micro_batch), &training_ranks());
      CHECK(relative_difference(parts.gradients, whole.gradients) <= 1e-6f);
      CHECK(std::abs(parts.result.loss - whole.result.loss) <= 1e-6);
      CHECK(parts.result.valid_targets == whole.result.valid_targets);
    }
  }
}

RANKS_TEST_CASE("ranks: one rank with nothing to learn adds nothing") {
  // The targets of the first half of a step are all ignored: rank 0's of two.
  const TemporaryFolder folder;
  std::vector<std::uint16_t> ids(55, 0);
  for (std::size_t i = 28; i < ids.size(); ++i) ids[i] = static_cast<std::uint16_t>(1 + i % 16);
  const std::string shard = write_file(folder / "shard.bin", shard_bytes(ids));
  const Config config = toy_of_ranks({"data.train=" + shard, "data.val="});
  const FirstStep one = first_step(config, nullptr), all = first_step(config, &training_ranks());
  CHECK(all.result.valid_targets == 27);
  CHECK(relative_difference(all.gradients, one.gradients) <= 1e-6f);
  CHECK(std::abs(all.result.loss - one.result.loss) <= 1e-6);
}

RANKS_TEST_CASE("ranks: evaluation gives the loss of one rank") {
  const Config config = toy_of_ranks({"eval.batches=5"});
  const auto loss = [&](Communicator* communicator) {
    ToyRun run(config, 1, communicator);
    return evaluate(run.context, *run.communicator, run.buffers.model, *run.data.validation, run.buffers.batch);
  };
  const Evaluation one = loss(nullptr), all = loss(&training_ranks());
  CHECK(std::abs(all.loss - one.loss) <= 1e-6);
  CHECK(all.targets == one.targets);
}

TEST_CASE("ranks: a gradient that is not finite on one rank makes all of them skip the step") {
  ToyRun run(toy_of_ranks(), 1, &ranks());
  run.trainer->step();
  const std::vector<float> before = run.weights();
  run.trainer->compute_gradients();
  const bool last = ranks().rank() == ranks().size() - 1;
  run.gradients();
  if (last) run.gradient("wpe.weight").as<float>()[5] = std::numeric_limits<float>::quiet_NaN();
  ranks().all_reduce(run.context, run.buffers.optimizer.gradients());
  const StepResult result = run.trainer->apply_gradients();
  CHECK(result.skipped);
  CHECK(run.weights() == before);
}
