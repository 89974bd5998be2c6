// Steps whose micro-batches are launched as CUDA graphs, beside steps that are enqueued kernel by kernel.
#include "toy_run.h"

#include <doctest/doctest.h>
#include <greyhound/core/stream.h>
#include <greyhound/train/evaluate.h>

#include <string>
#include <vector>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

struct Curve {
  std::vector<double> losses, norms, validation;
  std::vector<float> weights;
  std::int64_t graph_launches = 0;

  void take(const StepResult& result) {
    losses.push_back(result.loss);
    norms.push_back(result.grad_norm);
  }
  bool same_bits(const Curve& other) const {
    return losses == other.losses && norms == other.norms && validation == other.validation && weights == other.weights;
  }
};

constexpr int steps = 20;

// As the training loop goes: a step is started before the one before it is finished, and all are finished before an
// evaluation, whose batches go through the same buffers.
void train(ToyRun& run, int last, Curve& curve) {
  while (run.trainer->steps() < last) {
    run.trainer->start_step();
    const bool pauses = run.trainer->steps() % 5 == 0 || run.trainer->steps() == last;
    while (run.trainer->pending() > 0 && (pauses || run.trainer->must_finish())) curve.take(run.trainer->finish_step());
    if (run.trainer->steps() % 5 != 0) continue;
    curve.validation.push_back(
        evaluate(run.context, *run.communicator, run.buffers.model, *run.data.validation, run.buffers.batch).loss);
  }
}

Curve curve_of(ToyRun& run, bool graphs) {
  run.trainer->use_graphs(graphs);
  Curve curve;
  train(run, steps, curve);
  curve.weights = run.weights();
  curve.graph_launches = run.trainer->graph_launches();
  return curve;
}

Curve curve_of(const Config& config, bool graphs) {
  ToyRun run(config);
  return curve_of(run, graphs);
}

// Rows of whole pieces of 16 bytes and heads of 32: the kernels that training uses.
const std::vector<std::string> even_sizes = {"model.n_head=2", "model.n_embd=64", "model.block_size=32",
                                             "model.vocab_size=301", "train.batch_tokens=192"};

// 3 micro-batches of 2 rows a step.
std::vector<Config> configs() {
  std::vector<Config> all;
  for (const char* precision : {"run.precision=fp32", "run.precision=bf16"}) {
    for (const char* dropout : {"model.dropout=0", "model.dropout=0.2"}) {
      for (const char* recompute : {"train.recompute=none", "train.recompute=block"}) {
        all.push_back(toy({precision, dropout, recompute}));
        std::vector<std::string> even = even_sizes;
        even.insert(even.end(), {precision, dropout, recompute});
        all.push_back(toy(even));
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("trainer: steps launched as CUDA graphs have the bits of steps enqueued kernel by kernel" *
          doctest::test_suite("cuda")) {
  if (!test::have_device()) return;
  const Stream stream(test::device_context());
  const test::BackendScope scope(stream.context());
  for (const Config& config : configs()) {
    CAPTURE(config.model.n_embd);
    CAPTURE(std::string(name_of(config.run.precision)));
    CAPTURE(config.model.dropout);
    CAPTURE(static_cast<int>(config.train.recompute));
    const Curve with = curve_of(config, true), without = curve_of(config, false);
    REQUIRE(with.losses.size() == steps);
    CHECK(with.validation.size() == steps / 5);
    CHECK(with.same_bits(without));
    CHECK(without.graph_launches == 0);
    // Two buffers, and the first micro-batch of a step or a later one: four works, each of which ran once before.
    if (!test::cpu_as_device()) CHECK(with.graph_launches == 3 * steps - 4);
  }
}

TEST_CASE("trainer: graphs go on after a checkpoint, and where they are switched on and off" *
          doctest::test_suite("cuda")) {
  if (!test::have_device()) return;
  const Stream stream(test::device_context());
  const test::BackendScope scope(stream.context());
  const Config config = toy({"run.precision=bf16"});
  const Curve expected = curve_of(config, false);

  Curve curve;
  ToyRun first(config), second(config);
  train(first, 10, curve);
  StateCopy state = state_of(first);
  state.restore();
  second.trainer->visit_state(state);
  train(second, 13, curve);
  second.trainer->use_graphs(false);
  train(second, 16, curve);
  second.trainer->use_graphs(true);
  train(second, steps, curve);
  curve.weights = second.weights();
  CHECK(curve.same_bits(expected));
}

TEST_CASE("trainer: graphs go on around samples and a skipped step" * doctest::test_suite("cuda")) {
  if (!test::have_device()) return;
  const Stream stream(test::device_context());
  const test::BackendScope scope(stream.context());
  const auto outcome = [](bool graphs) {
    ToyRun run(toy({"run.precision=bf16"}));
    run.trainer->use_graphs(graphs);
    std::vector<double> values;
    for (int step = 0; step < 12; ++step) {
      run.trainer->compute_gradients();
      if (step == 7) fill_bytes(run.context, run.gradient("wpe.weight").data, 0xff, sizeof(float));  // a NaN
      const StepResult result = run.trainer->apply_gradients();
      CHECK(result.skipped == (step == 7));
      values.push_back(result.loss);
      if (step % 4 == 0) run.buffers.model.decode(run.context, 3, 0);
    }
    const std::vector<float> weights = run.weights();
    values.insert(values.end(), weights.begin(), weights.end());
    return values;
  };
  CHECK(outcome(true) == outcome(false));
}

TEST_CASE("trainer: the default stream, and a run without graphs, go kernel by kernel" * doctest::test_suite("cuda")) {
  if (!test::have_device()) return;
  const auto launches = [](const Config& config) {
    ToyRun run(config);
    for (int step = 0; step < 6; ++step) run.trainer->step();
    return run.trainer->graph_launches();
  };
  {
    const test::BackendScope scope(test::device_context());
    CHECK(launches(toy()) == 0);
  }
  const Stream stream(test::device_context());
  const test::BackendScope scope(stream.context());
  CHECK(launches(toy({"run.cuda_graphs=false"})) == 0);
  if (!test::cpu_as_device()) CHECK(launches(toy()) > 0);
}

TEST_CASE("trainer: on the CPU nothing is captured") {
  ToyRun run(toy());
  for (int step = 0; step < 3; ++step) run.trainer->step();
  CHECK(run.trainer->graph_launches() == 0);
}
