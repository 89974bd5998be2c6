#include "test_files.h"
#include "toy_run.h"

#include <doctest/doctest.h>
#include <greyhound/train/evaluate.h>
#include <greyhound/train/generate.h>
#include <greyhound/train/schedule.h>
#include <tests/differences.h>

#include <algorithm>
#include <cmath>
#include <limits>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

struct Curve {
  std::vector<double> losses, norms;
  std::vector<float> weights;
  bool operator==(const Curve&) const = default;
};

// Trains `steps` steps and calls between(run) after each.
template <class Between>
Curve train(const Config& config, int steps, int threads, Between&& between) {
  ToyRun run(config, threads);
  Curve curve;
  for (int step = 0; step < steps; ++step) {
    const StepResult result = run.trainer->step();
    curve.losses.push_back(result.loss);
    curve.norms.push_back(result.grad_norm);
    between(run);
  }
  curve.weights = run.weights();
  return curve;
}

Curve train(const Config& config, int steps, int threads = 0) {
  return train(config, steps, threads, [](ToyRun&) {});
}

void poison(ToyRun& run, const std::string& parameter) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor gradient = run.gradient(parameter);
  copy_bytes(run.context, gradient.as<float>() + 3, gradient.device, &nan, Device::cpu(), sizeof nan);
  run.context.synchronize();
}

}  // namespace

TEST_CASE_ON_EACH_BACKEND(
    "trainer: a NaN in one gradient skips the step and leaves weights, moments and t to the bit") {
  for (const char* precision : {"fp32", "bf16"}) {
    CAPTURE(precision);
    ToyRun run(toy({concat("run.precision=", precision)}));
    run.trainer->step();
    const StateCopy before = state_of(run);
    const Tensor working = run.buffers.optimizer.working_weights();
    const std::vector<std::byte> working_before = bytes_of(run.context, working);

    run.trainer->compute_gradients();
    poison(run, "h.1.mlp.c_fc.weight");
    const StepResult skipped = run.trainer->apply_gradients();
    CHECK(skipped.skipped);
    CHECK(std::isnan(skipped.grad_norm));
    CHECK(std::isfinite(skipped.loss));
    CHECK(skipped.skipped_steps == 1);
    CHECK(run.buffers.optimizer.nonfinite_gradient(run.context) == "h.1.mlp.c_fc.weight");
    CHECK(run.trainer->skipped_steps() == 1);
    const StateCopy after = state_of(run);
    for (const char* name : {"optimizer.weights", "optimizer.m", "optimizer.v", "optimizer.steps_taken"}) {
      CAPTURE(name);
      CHECK(after.values().at(name) == before.values().at(name));
    }
    CHECK(bytes_of(run.context, working) == working_before);

    // Learning rate and data go on.
    CHECK(run.trainer->steps() == 2);
    CHECK(run.data.train->step() == 2);
    const StepResult next = run.trainer->step();
    CHECK_FALSE(next.skipped);
    CHECK(next.lr == learning_rate(run.config.schedule, run.config.optimizer.lr, 2, run.config.train.max_steps));
    CHECK(run.buffers.optimizer.updates(run.context) == 2);
    CHECK(run.trainer->tokens() == 3 * 54);
  }
}

TEST_CASE("evaluation: ends when it is told to stop") {
  ToyRun run(toy({"eval.batches=50"}));
  int asked = 0;
  const auto evaluate_until = [&](int questions) {
    asked = 0;
    return evaluate(run.context, *run.communicator, run.buffers.model, *run.data.validation, run.buffers.batch,
                    [&] { return ++asked == questions; });
  };
  REQUIRE(run.data.validation->size() == 50);
  CHECK(evaluate_until(3).stopped);
  CHECK(asked == 3);
  CHECK_FALSE(evaluate_until(50).stopped);  // after the last batch nobody asks
  CHECK(asked == 49);
}

TEST_CASE_ON_EACH_BACKEND("trainer: three skipped steps in a row end the run and name the tensor; two do not") {
  ToyRun run(toy());
  const auto skip = [&] {
    run.trainer->compute_gradients();
    poison(run, "h.0.attn.c_proj.weight");
    run.trainer->apply_gradients();
  };
  for (int round = 0; round < 2; ++round) {
    skip();
    skip();
    CHECK_NOTHROW(run.trainer->check_progress());
    run.trainer->step();
    CHECK_NOTHROW(run.trainer->check_progress());
  }
  skip();
  skip();
  skip();
  const std::string message = error_of([&] { run.trainer->check_progress(); });
  CHECK(contains(message, "1: "));
  CHECK(contains(message, "3 steps in a row"));
  CHECK(contains(message, "h.0.attn.c_proj.weight"));
  CHECK(run.trainer->skipped_steps() == 7);
}

TEST_CASE_ON_EACH_BACKEND("trainer: two runs have the same bits, whatever the number of threads") {
  for (const char* precision : {"fp32", "bf16"}) {
    CAPTURE(precision);
    const Config config = toy({concat("run.precision=", precision), "loss.z_loss_multiplier=1e-4"});
    const Curve first = train(config, 6, 1);
    CHECK(train(config, 6, 1) == first);
    CHECK(train(config, 6, 2) == first);
    CHECK(train(config, 6, 3) == first);
    Config other = config;
    other.run.seed = 4;
    CHECK_FALSE(train(other, 6, 1) == first);
  }
}

TEST_CASE_ON_EACH_BACKEND("trainer: steps that are finished later have the same bits as steps that are waited for") {
  for (const char* precision : {"fp32", "bf16"}) {
    CAPTURE(precision);
    const Config config = toy({concat("run.precision=", precision)});
    const Curve waited = train(config, 12);
    ToyRun run(config);
    Curve curve;
    std::int64_t last_step = 0;
    const auto finish = [&] {
      const StepResult result = run.trainer->finish_step();
      CHECK(result.step == ++last_step);
      CHECK(result.tokens == 54 * result.step);
      CHECK(result.lr == learning_rate(config.schedule, config.optimizer.lr, result.step - 1, config.train.max_steps));
      CHECK(result.seconds > 0);
      curve.losses.push_back(result.loss);
      curve.norms.push_back(result.grad_norm);
    };
    for (int step = 0; step < 12; ++step) {
      run.trainer->start_step();
      while (run.trainer->must_finish()) finish();
    }
    CHECK(run.trainer->pending() <= 1);
    while (run.trainer->pending() > 0) finish();
    curve.weights = run.weights();
    CHECK(curve == waited);
  }
}

// As training_loop.cpp calls the trainer.
TEST_CASE_ON_EACH_BACKEND("trainer: a run that diverges ends at its third skipped step, and the tensor is named") {
  ToyRun run(toy({"optimizer.lr=1e9", "optimizer.grad_clip=0"}));
  std::string message;
  std::int64_t skips = 0;
  for (int step = 0; step < 20 && message.empty(); ++step) {
    run.trainer->start_step();
    while (run.trainer->must_finish() && message.empty()) {
      skips += run.trainer->finish_step().skipped ? 1 : 0;
      const std::string error = error_of([&] { run.trainer->check_progress(); });
      if (error != "no error") message = error;
    }
  }
  CAPTURE(message);
  CHECK(skips == 3);
  CHECK(run.trainer->skipped_steps() == 3);
  CHECK(run.trainer->pending() == 0);
  CHECK(contains(message, "3 steps in a row"));
  // Where numbers grow beyond all bounds, rounding decides which is the first: another one on a GPU.
  CHECK(
      contains(message, test::test_device().is_cpu() ? "the first such tensor is ln_f" : "the first such tensor is "));
}

TEST_CASE_ON_EACH_BACKEND("trainer: evaluation and sampling after every step leave the curve as it is, to the bit") {
  const Config config = toy();
  const Curve alone = train(config, 8);
  int drawn = 0;
  const Curve watched = train(config, 8, 0, [&](ToyRun& run) {
    const Evaluation result =
        evaluate(run.context, *run.communicator, run.buffers.model, *run.data.validation, run.buffers.batch);
    CHECK(std::isfinite(result.loss));
    CHECK(result.targets == 3 * 2 * 9);
    GenerationOptions options;
    options.tokens = 20;
    generate_text(run.context, run.buffers.model, run.data.tokenizer, "3", options,
                  [&](const std::string& piece) { drawn += static_cast<int>(piece.size()); });
  });
  CHECK(watched == alone);
  CHECK(drawn > 0);
}

TEST_CASE_ON_EACH_BACKEND("trainer: accumulating over micro-batches gives the gradients of the one batch") {
  // A quarter of the targets are ignored, and not the same number in each micro-batch.
  const std::vector<std::string> common = {"data.ignore_token=0", "train.batch_tokens=72",
                                           "loss.z_loss_multiplier=1e-3"};
  const auto gradients = [&](std::int64_t micro_batch, StepResult& result) {
    Config config = toy(common);
    config.train.micro_batch = micro_batch;
    ToyRun run(config);
    run.trainer->compute_gradients();
    const std::vector<float> gradients = run.gradients();
    result = run.trainer->apply_gradients();
    return gradients;
  };
  StepResult whole_result, parts_result;
  const std::vector<float> whole = gradients(8, whole_result);
  REQUIRE(whole_result.valid_targets < 72);
  REQUIRE(whole_result.valid_targets > 0);
  const double largest = test::largest_magnitude(whole);
  for (const std::int64_t micro_batch : {1, 2, 3, 4}) {
    CAPTURE(micro_batch);  // 3 does not divide 8 rows: 2 is taken
    const std::vector<float> parts = gradients(micro_batch, parts_result);
    CHECK(test::largest_difference(whole, parts) <= 1e-6 * largest);
    CHECK(parts_result.loss == doctest::Approx(whole_result.loss).epsilon(1e-6));
    CHECK(*parts_result.z_loss == doctest::Approx(*whole_result.z_loss).epsilon(1e-6));
    CHECK(parts_result.valid_targets == whole_result.valid_targets);
  }
}

TEST_CASE_ON_EACH_BACKEND("trainer: restored state goes on with the same bits") {
  for (const char* precision : {"fp32", "bf16"}) {
    CAPTURE(precision);
    const Config config = toy({concat("run.precision=", precision)});
    ToyRun straight(config);
    for (int step = 0; step < 3; ++step) straight.trainer->step();
    straight.trainer->compute_gradients();
    poison(straight, "wte.weight");
    straight.trainer->apply_gradients();
    StateCopy saved = state_of(straight);

    ToyRun resumed(config);
    saved.restore();
    resumed.trainer->visit_state(saved);
    CHECK(resumed.trainer->steps() == 4);
    CHECK(resumed.trainer->skipped_steps() == 1);
    CHECK(resumed.trainer->epoch() == straight.trainer->epoch());
    for (int step = 0; step < 3; ++step) {
      const StepResult expected = straight.trainer->step(), found = resumed.trainer->step();
      CHECK(found.loss == expected.loss);
      CHECK(found.grad_norm == expected.grad_norm);
      CHECK(found.lr == expected.lr);
    }
    CHECK(state_of(resumed) == state_of(straight));
  }
}

TEST_CASE_ON_EACH_BACKEND("trainer: overfit_batch takes the loss of a toy under 0.05") {
  const Config config =
      toy({"train.overfit_batch=true", "train.max_steps=200", "train.batch_tokens=27", "model.dropout=0",
           "model.n_embd=24", "optimizer.weight_decay=0", "schedule.warmup_steps=10"});
  const Curve curve = train(config, 200);
  CHECK(curve.losses.front() > 2);
  CHECK(curve.losses.back() < 0.05);
}

TEST_CASE_ON_EACH_BACKEND("trainer: bf16 learns as fp32 does") {
  const auto last_losses = [](const char* precision) {
    const Curve curve =
        train(toy({concat("run.precision=", precision), "train.batch_tokens=288", "train.max_steps=60"}), 60);
    double sum = 0;
    for (std::size_t i = 50; i < 60; ++i) sum += curve.losses[i] / 10;
    CHECK(sum < curve.losses.front() - 0.2);
    return sum;
  };
  CHECK(last_losses("bf16") == doctest::Approx(last_losses("fp32")).epsilon(0.02));
}

TEST_CASE_ON_EACH_BACKEND("trainer: a step whose targets are all ignored changes nothing but the counters") {
  // A vocabulary of one: every target is token 0.
  ToyRun run(toy({"model.vocab_size=1", "data.ignore_token=0", "optimizer.weight_decay=0", "sample.prompt=0"}));
  const std::vector<float> before = run.weights();
  const StepResult result = run.trainer->step();
  CHECK(result.valid_targets == 0);
  CHECK(result.loss == 0);
  CHECK(result.grad_norm == 0);
  CHECK_FALSE(result.skipped);
  CHECK(run.weights() == before);
}
