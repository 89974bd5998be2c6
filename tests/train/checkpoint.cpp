#include "test_files.h"
#include "toy_run.h"

#include <doctest/doctest.h>
#include <greyhound/train/checkpoint_folder.h>
#include <greyhound/train/resume.h>
#include <greyhound/train/safetensors.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <functional>

using namespace greyhound;
using namespace greyhound::testing;
namespace fs = std::filesystem;

namespace {

CheckpointInfo info_of(const ToyRun& run, const StateSnapshot& snapshot) {
  CheckpointInfo info = describe_run(run.config, run.batch, run.data.tokenizer, {});
  info.step = run.trainer->steps();
  info.tokens = run.trainer->tokens();
  info.values = snapshot.values();
  return info;
}

void save(ToyRun& run, const RunDir& run_dir, std::int64_t keep = 0) {
  StateSnapshot snapshot(run.context);
  snapshot.take(*run.trainer);
  CheckpointFolder(run_dir).save(info_of(run, snapshot), run.buffers.model.parameters(), snapshot.tensors(), keep);
}

void flip_byte(const std::string& path, std::size_t position) {
  std::string bytes = read_file(path);
  bytes[position] = static_cast<char>(bytes[position] ^ 1);
  write_file(path, bytes);
}

constexpr const char* files[] = {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"};

// A run with checkpoints of steps 1 to 3.
struct SavedRun {
  TemporaryFolder folder;
  ToyRun run{toy()};
  RunDir run_dir{folder.path()};
  CheckpointFolder checkpoints{run_dir};
  std::vector<std::string> warnings;

  SavedRun() {
    for (int step = 1; step <= 3; ++step) {
      run.trainer->step();
      save(run, run_dir);
    }
  }
  std::int64_t newest_step() { return checkpoints.newest(warnings)->info().step; }
};

}  // namespace

TEST_CASE_ON_EACH_BACKEND(
    "checkpoint: what was saved is restored to the bit, and training goes on as if nothing had happened") {
  for (const char* precision : {"fp32", "bf16"}) {
    CAPTURE(precision);
    const TemporaryFolder folder;
    const Config config = toy({concat("run.precision=", precision)});
    ToyRun first(config);
    for (int step = 0; step < 3; ++step) first.trainer->step();
    save(first, RunDir(folder.path()));
    const StateCopy saved = state_of(first);
    const StepResult next = first.trainer->step();

    ToyRun second(config);
    second.trainer->step();  // of which nothing may stay
    const Checkpoint checkpoint(folder / "checkpoints/step_00000003");
    checkpoint.restore(second.context, second.buffers.model.parameters(), *second.trainer);
    CHECK(state_of(second) == saved);
    const StepResult again = second.trainer->step();
    CHECK(again.loss == next.loss);
    CHECK(again.grad_norm == next.grad_norm);
    CHECK(state_of(second) == state_of(first));
  }
}

TEST_CASE("checkpoint: the files are what other programs read") {
  SavedRun saved;
  const std::string folder = saved.checkpoints.path(2);
  const SafetensorsFile weights(folder + "/model.safetensors"), optimizer(folder + "/optimizer.safetensors");
  CHECK(weights["wte.weight"].shape == Shape{17, 12});  // without padded rows
  CHECK(optimizer["optimizer.m.wte.weight"].shape == Shape{17, 12});
  CHECK(optimizer["optimizer.v.h.1.mlp.c_fc.weight"].dtype == DType::fp32);
  CHECK(*optimizer["optimizer.steps_taken"].as<std::int64_t>() == 2);
  const auto state = nlohmann::json::parse(read_file(folder + "/state.json"));
  CHECK(state["step"] == 2);
  CHECK(state["tokens"] == 2 * 54);
  CHECK(state["config"]["model.n_layer"] == 2);
  CHECK(state["config"]["optimizer.lr"] == 1e-2);
  CHECK(state["values"]["loader.step"] == 2);
  const auto manifest = nlohmann::json::parse(read_file(folder + "/manifest.json"));
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    CHECK(manifest["files"][name]["bytes"] == fs::file_size(folder + "/" + name));
  }
  // The run's weights are those of the newest checkpoint, and take no room of their own.
  CHECK(fs::equivalent(saved.run_dir.weights(), saved.checkpoints.path(3) + "/model.safetensors"));
}

TEST_CASE("checkpoint: state.json is read back with every kind of value") {
  CheckpointInfo info =
      describe_run(toy(), plan_batch(2, 54, 9, 1), Tokenizer::bytes(), {{"a \"b\".txt", 12, "0f"}, {"c", 0, "1e"}});
  info.step = 7;
  info.tokens = 378;
  info.values = {{"a", std::int64_t{-3}}, {"b", 0.1},       {"c", std::string("tab\tand é")},
                 {"d", HUGE_VAL},         {"e", -HUGE_VAL}, {"f", std::nan("")}};
  const CheckpointInfo read = parse_checkpoint_info(to_json(info), "state.json");
  CHECK(read.step == 7);
  CHECK(read.tokens == 378);
  CHECK(read.batch_tokens == 54);
  CHECK(read.config == info.config);
  CHECK(read.data == info.data);
  CHECK(std::isnan(std::get<double>(read.values.at("f"))));
  for (const char* name : {"a", "b", "c", "d", "e"}) CHECK(read.values.at(name) == info.values.at(name));
}

TEST_CASE("checkpoint: a state.json that is something else is one clear line") {
  const std::string good = to_json(describe_run(toy(), plan_batch(2, 54, 9, 1), Tokenizer::bytes(), {{"a", 12, "0f"}}));
  const struct {
    const char *before, *after, *message;
  } cases[] = {
      {"\"format\": 1", "\"format\": 2", "has format 2"},
      {"\"format\": 1", "\"format\": 1e66", "format: expected a whole number, found 1e+66"},
      {"\"format\"", "\"form\"", "has no format"},
      {"\"step\": 0", "\"step\": -1", "step: expected a whole number, found -1"},
      {"\"step\": 0", "\"step\": 9223372036854775807", "step: expected a whole number"},
      {"\"step\": 0", "\"step\": [[[]]]", "step: expected a whole number, found a list"},
      {"\"values\": {}", "\"values\": []", "values: expected an object"},
      {"\"values\": {}", "\"values\": {\"a\": [1]}", "values: a: expected an integer, a real or a text, found a list"},
      {"\"values\": {}", "\"values\": {\"a\": 9223372036854775807}", "values: a: expected an integer"},
      {"\"values\": {}", "\"values\": {\"a\": {\"real\": \"x\"}}", "values: a: expected an integer"},
      {"\"tokenizer\"", "\"token\"", "has no tokenizer"},
      {"\"bytes\": 12", "\"bytes\": \"12\"", "bytes: expected a whole number"},
      {"\"model.n_layer\": 2", "\"model.n_layer\": {}", "config: model.n_layer: expected a value"},
      {"{", "[", "is not JSON"},
  };
  for (const auto& test : cases) {
    CAPTURE(test.after);
    std::string text = good;
    REQUIRE(contains(text, test.before));
    text.replace(text.find(test.before), std::string(test.before).size(), test.after);
    const std::string message = error_of([&] { parse_checkpoint_info(text, "x/state.json"); });
    CHECK(contains(message, "1: x/state.json: "));
    CHECK(contains(message, test.message));
  }
}

TEST_CASE("checkpoint: truncated files, flipped bytes and missing files are found, and the next older one is taken") {
  for (const char* name : files) {
    for (const char* damage :
         {"truncated", "flipped at the start", "flipped at the end", "longer", "missing", "empty"}) {
      CAPTURE(name);
      CAPTURE(damage);
      SavedRun saved;
      const std::string path = saved.checkpoints.path(3) + "/" + name, kind = damage;
      const std::size_t size = fs::file_size(path);
      if (kind == "truncated") fs::resize_file(path, size - 1);
      if (kind == "flipped at the start") flip_byte(path, 0);
      if (kind == "flipped at the end") flip_byte(path, size - 2);  // the last byte of JSON is a line end
      if (kind == "longer") write_file(path, read_file(path) + "x");
      if (kind == "missing") fs::remove(path);
      if (kind == "empty") write_file(path, "");
      if (std::string(name) == "manifest.json" && kind == "truncated") {  // its line end: nothing is lost
        CHECK(saved.newest_step() == 3);
        continue;
      }
      CHECK(saved.newest_step() == 2);
      REQUIRE(saved.warnings.size() == 1);
      CHECK(contains(saved.warnings[0], "checkpoint of step 3 is not used"));
      CHECK(contains(saved.warnings[0], name));
      // Nothing is deleted, and the next start does not stumble over it again.
      CHECK(fs::exists(saved.checkpoints.path(3) + ".damaged"));
      saved.warnings.clear();
      CHECK(saved.newest_step() == 2);
      CHECK(saved.warnings.empty());
    }
  }
}

TEST_CASE("checkpoint: no flipped bit of a manifest makes another state of it") {
  SavedRun saved;
  const std::string path = saved.checkpoints.path(3) + "/manifest.json", good = read_file(path);
  for (std::size_t position = 0; position < good.size(); ++position) {
    CAPTURE(position);
    flip_byte(path, position);
    std::int64_t step = 3;
    const std::string message = error_of([&] { step = Checkpoint(saved.checkpoints.path(3)).info().step; });
    CHECK((message == "no error" || contains(message, "1: " + saved.checkpoints.path(3))));
    CHECK(step == 3);
    write_file(path, good);
  }
}

TEST_CASE("checkpoint: empty folders, unfinished ones and others' files are no checkpoints") {
  SavedRun saved;
  fs::create_directories(saved.checkpoints.path(4));
  fs::create_directories(saved.folder / "checkpoints/.step_00000009.tmp");
  fs::create_directories(saved.folder / "checkpoints/step_12.damaged");
  fs::copy(saved.checkpoints.path(3), saved.folder / "checkpoints/step_999", fs::copy_options::recursive);
  write_file(saved.folder / "checkpoints/step_notes.txt", "mine");
  CHECK(saved.checkpoints.steps() == std::vector<std::int64_t>{1, 2, 3, 4});
  CHECK(saved.newest_step() == 3);
  CHECK(saved.warnings.size() == 1);

  // All of them damaged is an error, not a fresh start; none at all is neither.
  for (const std::int64_t step : saved.checkpoints.steps()) fs::remove(saved.checkpoints.path(step) + "/manifest.json");
  const std::string message = error_of([&] { saved.newest_step(); });
  CHECK(contains(message, "1: " + saved.run_dir.checkpoints() + ": none of the 3 checkpoints is whole"));
  const TemporaryFolder other;
  CHECK_FALSE(CheckpointFolder(RunDir(other.path())).newest(saved.warnings).has_value());
}

TEST_CASE("checkpoint: the newest are kept, and what an interrupted save left goes") {
  SavedRun saved;
  fs::create_directories(saved.folder / "checkpoints/.step_00000002.tmp/rest");
  saved.run.trainer->step();
  save(saved.run, saved.run_dir, 2);
  CHECK(saved.checkpoints.steps() == std::vector<std::int64_t>{3, 4});
  CHECK_FALSE(fs::exists(saved.folder / "checkpoints/.step_00000002.tmp"));
  save(saved.run, saved.run_dir, 1);  // the same step again
  CHECK(saved.checkpoints.steps() == std::vector<std::int64_t>{4});
  CHECK(saved.newest_step() == 4);
  CHECK(saved.warnings.empty());

  // What claims to be later is not of this run, and pushes nothing out.
  fs::create_directories(saved.checkpoints.path(77));
  // Of a checkpoint that was moved elsewhere, the link goes and not what it leads to.
  fs::rename(saved.checkpoints.path(4), saved.folder / "archive");
  fs::create_directory_symlink(saved.folder / "archive", saved.checkpoints.path(4));
  saved.run.trainer->step();
  save(saved.run, saved.run_dir, 1);
  CHECK(saved.checkpoints.steps() == std::vector<std::int64_t>{5, 77});
  CHECK(fs::exists(saved.folder / "archive/manifest.json"));
}

TEST_CASE("checkpoint: removing all leaves a link to another disk, and others' files") {
  SavedRun saved;
  write_file(saved.folder / "checkpoints/notes.txt", "mine");
  saved.checkpoints.remove_all();
  CHECK(saved.checkpoints.steps().empty());
  CHECK(read_file(saved.folder / "checkpoints/notes.txt") == "mine");
  fs::rename(saved.folder / "checkpoints", saved.folder / "disk");
  fs::create_directory_symlink(saved.folder / "disk", saved.folder / "checkpoints");
  save(saved.run, saved.run_dir);
  saved.checkpoints.remove_all();
  CHECK(saved.checkpoints.steps().empty());
  CHECK(fs::is_symlink(saved.folder / "checkpoints"));
}

TEST_CASE("checkpoint: one of another model is refused with the tensor that does not fit") {
  SavedRun saved;
  const Checkpoint checkpoint(saved.checkpoints.path(3));
  const auto restore_into = [&](const std::vector<std::string>& overrides) {
    ToyRun other(toy(overrides));
    return error_of([&] { checkpoint.restore(other.context, other.buffers.model.parameters(), *other.trainer); });
  };
  CHECK(restore_into({}) == "no error");
  CHECK(contains(restore_into({"model.n_embd=24"}), "expected shape"));
  CHECK(contains(restore_into({"model.n_layer=1"}), "which this run does not have"));
  CHECK(contains(restore_into({"model.n_layer=3"}), "has no tensor h.2."));
}

TEST_CASE("checkpoint: counters that contradict each other, and another tokenizer, are refused") {
  SavedRun saved;
  StateSnapshot snapshot(saved.run.context);
  snapshot.take(*saved.run.trainer);
  const CheckpointInfo now = describe_run(saved.run.config, saved.run.batch, saved.run.data.tokenizer, {});
  const auto refusal = [&](const std::function<void(CheckpointInfo&)>& edit) {
    CheckpointInfo info = info_of(saved.run, snapshot);
    edit(info);
    saved.checkpoints.save(info, saved.run.buffers.model.parameters(), snapshot.tensors(), 0);
    return error_of([&] { require_same_run(Checkpoint(saved.checkpoints.path(3)), now, saved.run_dir); });
  };
  const auto set = [](const char* name, StateValue value) {
    return [name, value](CheckpointInfo& info) { info.values[name] = value; };
  };
  CHECK(refusal([](CheckpointInfo&) {}) == "no error");
  const std::string path = "1: " + saved.checkpoints.path(3) + "/state.json: ";
  CHECK(refusal(set("loader.step", std::int64_t{-5})) == path + "loader.step is -5, but step is 3");
  CHECK(refusal(set("trainer.steps", std::int64_t{5000})) == path + "trainer.steps is 5000, but step is 3");
  CHECK(refusal(set("trainer.skipped_steps", std::int64_t{-1})) == path + "trainer.skipped_steps is -1, of 3 steps");
  CHECK(refusal(set("loader.step", 3.0)) == path + "has no integer loader.step");
  CHECK(refusal([](CheckpointInfo& info) { info.values.erase("loader.step"); }) == path + "has no integer loader.step");
  CHECK(contains(refusal([](CheckpointInfo& info) { info.tokenizer = "another"; }), "the tokenizer is another one"));
}
