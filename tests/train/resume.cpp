// Runs that are stopped, killed and gone on with, through the program.
#include "program.h"
#include "test_files.h"

#include <doctest/doctest.h>
#include <greyhound/train/checkpoint_folder.h>

#include <chrono>
#include <thread>

using namespace greyhound;
using namespace greyhound::testing;
namespace fs = std::filesystem;

namespace {

// Accumulation over 3 micro-batches, two shards of unequal size (13 and 7 steps of 72 tokens: the epoch ends within the
// run), dropout, evaluation and samples.
std::string config_file(const TemporaryFolder& folder) {
  const auto shard = [&](const char* name, int tokens, int first) {
    std::vector<std::uint16_t> ids;
    for (int i = 0; i < tokens; ++i) ids.push_back(static_cast<std::uint16_t>((first + i * i) % 17));
    write_file(folder / name, shard_bytes(ids));
  };
  shard("train_0.bin", 72 * 13 + 5, 0);
  shard("train_1.bin", 72 * 7 + 1, 3);
  shard("val.bin", 72 * 2 + 1, 5);
  return write_file(folder / "toy.yaml", concat("run: {dir: ", folder / "run", R"(, seed: 3, device: cpu}
model: {n_layer: 2, n_head: 3, n_embd: 12, block_size: 12, vocab_size: 17, vocab_multiple: 8, dropout: 0.1}
data: {train: ")",
                                                folder / "train_*.bin", "\", val: ", folder / "val.bin", R"(}
optimizer: {lr: 1.0e-2}
schedule: {warmup_steps: 5}
train: {micro_batch: 2, batch_tokens: 72, max_steps: 40}
eval: {every: 6, batches: 3}
sample: {every: 9, tokens: 5, prompt: "1 2"}
checkpoint: {every: 13, keep: 0}
)"));
}

void remove_after(const std::string& run_dir, std::int64_t step) {
  const CheckpointFolder checkpoints{RunDir(run_dir)};
  for (const std::int64_t other : checkpoints.steps()) {
    if (other > step) fs::remove_all(checkpoints.path(other));
  }
}

std::string final_state(const std::string& run_dir, std::int64_t step = 40) {
  const std::string folder = CheckpointFolder(RunDir(run_dir)).path(step);
  std::string bytes = read_file(folder + "/model.safetensors") + read_file(folder + "/optimizer.safetensors");
  // The run's folder is a part of the configuration.
  auto state = nlohmann::json::parse(read_file(folder + "/state.json"));
  for (const char* key : {"run.dir", "checkpoint.every", "checkpoint.keep"}) state["config"].erase(key);
  return bytes + state.dump();
}

void check_ok(const Outcome& outcome) {
  CAPTURE(outcome.error);
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.error == "");
}

}  // namespace

TEST_CASE("resume: 40 steps straight, 13 and 27, 20 and 20: the same bits of losses, norms, weights and moments") {
  for (const char* precision : {"fp32", "bf16"}) {
    CAPTURE(precision);
    const TemporaryFolder folder;
    const std::string config = config_file(folder), straight = folder / "run";
    const Arguments train = {"train", config, concat("run.precision=", precision)};
    check_ok(run(folder, train));
    REQUIRE(metrics_of(straight).size() == 40);

    for (const int step : {13, 20}) {
      CAPTURE(step);
      const std::string again = folder / "again";
      fs::remove_all(again);
      Arguments resume = train;
      resume.insert(resume.end(), {"run.dir=" + again, "--resume"});
      if (step == 13) {
        // As a crash would have left it: with lines of steps after the checkpoint.
        fs::copy(straight, again, fs::copy_options::recursive);
        remove_after(again, 13);
      } else {
        resume.push_back("checkpoint.every=20");
        check_ok(run(folder, resume));  // no checkpoint yet: it starts
        remove_after(again, 20);
      }
      const Outcome outcome = run(folder, resume);
      check_ok(outcome);
      CHECK(contains(outcome.out, concat("resuming from ", again, "/checkpoints/step_000000", step)));
      CHECK(curve_of(again) == curve_of(straight));
      CHECK(final_state(again) == final_state(straight));
      CHECK(read_file(again + "/model.safetensors") == read_file(straight + "/model.safetensors"));
    }
  }
}

TEST_CASE("resume: a signal saves a checkpoint, and the run goes on from there") {
  const TemporaryFolder folder;
  const std::string config = config_file(folder);
  const Arguments steps = {"train.max_steps=1200", "eval.every=0", "sample.every=0", "checkpoint.every=0"};
  Arguments straight = {"train", config}, stopped = {"train", config, "run.dir=" + folder / "stopped", "--resume"};
  straight.insert(straight.end(), steps.begin(), steps.end());
  stopped.insert(stopped.end(), steps.begin(), steps.end());
  check_ok(run(folder, straight));
  for (const int signal : {SIGTERM, SIGINT}) {
    Program program(folder, stopped);
    const std::size_t before = fs::exists(folder / "stopped/metrics.jsonl") ? metrics_of(folder / "stopped").size() : 0;
    while (!fs::exists(folder / "stopped/metrics.jsonl") || metrics_of(folder / "stopped").size() < before + 5) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    program.send(signal);
    const Outcome outcome = program.wait();
    CAPTURE(outcome.error);
    CHECK(outcome.exit_code == 0);
    CHECK(contains(outcome.out, signal == SIGTERM ? "stopped by SIGTERM" : "stopped by Ctrl-C"));
    const std::int64_t step = CheckpointFolder(RunDir(folder / "stopped")).steps().back();
    CHECK(static_cast<std::size_t>(step) == metrics_of(folder / "stopped").size());
    CHECK(step < 1200);
  }
  check_ok(run(folder, stopped));
  CHECK(curve_of(folder / "stopped") == curve_of(folder / "run"));
  CHECK(final_state(folder / "stopped", 1200) == final_state(folder / "run", 1200));

  const Outcome finished = run(folder, stopped);
  check_ok(finished);
  CHECK(contains(finished.out, "the run in " + folder / "stopped" + " is finished: 1,200 steps of 1200"));
}

TEST_CASE("program: its processes are found by its name, also with threads that it lets sleep") {
  const TemporaryFolder folder;
  const Program program(folder, {"train", config_file(folder), "train.max_steps=1000000", "eval.every=0"}, {}, [] {
    unsetenv("OMP_WAIT_POLICY");
    unsetenv("GOMP_SPINCOUNT");
  });
  while (!fs::exists(folder / "run/metrics.jsonl") && program.runs()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  CHECK(program.name() == "greyhound\n");
  program.send(SIGTERM);
  check_ok(program.wait());
}

TEST_CASE("resume: killed twenty times in a loop of saves, the run ends as if nothing had happened" *
          doctest::test_suite("slow")) {
  const TemporaryFolder folder;
  const std::string config = config_file(folder), run_dir = folder / "killed";
  const Arguments steps = {"train.max_steps=600", "eval.every=0", "sample.every=0"};
  Arguments straight = {"train", config, "checkpoint.every=0"};
  Arguments killed = {"train", config, "run.dir=" + run_dir, "checkpoint.every=1", "checkpoint.keep=2", "--resume"};
  straight.insert(straight.end(), steps.begin(), steps.end());
  killed.insert(killed.end(), steps.begin(), steps.end());
  check_ok(run(folder, straight));

  const CheckpointFolder checkpoints{RunDir(run_dir)};
  const auto newest = [&] { return checkpoints.steps().empty() ? 0 : checkpoints.steps().back(); };
  for (int round = 0; round < 20; ++round) {
    CAPTURE(round);
    const std::int64_t before = newest();
    Program program(folder, killed);
    while (newest() <= before && program.runs()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::microseconds(round * 1733 % 20000));
    program.send(SIGKILL);
    const Outcome outcome = program.wait();
    CAPTURE(outcome.error);
    CHECK(outcome.exit_code == 128 + SIGKILL);
    CHECK(outcome.error == "");  // not even a warning: no half checkpoint ever has the name of a whole one
    CHECK(newest() > before);
    CHECK(static_cast<std::int64_t>(metrics_of(run_dir).size()) >= newest());
  }
  REQUIRE(newest() < 600);
  check_ok(run(folder, killed));
  CHECK(curve_of(run_dir) == curve_of(folder / "run"));
  CHECK(final_state(run_dir, 600) == final_state(folder / "run", 600));
  CHECK(checkpoints.steps().size() == 2);
}

TEST_CASE("resume: more steps are the same run, other settings are another one") {
  const TemporaryFolder folder;
  const std::string config = config_file(folder), run_dir = folder / "run";
  const auto train = [&](const Arguments& more) {
    Arguments arguments = {"train", config, "--resume"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(folder, arguments);
  };
  const Outcome first = train({"train.max_steps=8"});
  check_ok(first);
  CHECK(contains(first.out, "no checkpoint in " + run_dir + ": starting the run"));
  check_ok(train({"train.max_steps=9", "train.micro_batch=3", "eval.every=2", "log.every=1", "checkpoint.keep=1"}));
  CHECK(metrics_of(run_dir).size() == 9);
  const Outcome shorter = train({"train.max_steps=5"});
  check_ok(shorter);
  CHECK(contains(shorter.out, "is finished: 9 steps of 5"));

  const Outcome refused = train({"model.n_layer=3", "optimizer.lr=2e-2", "run.precision=bf16", "run.seed=4",
                                 "data.ignore_token=1", "train.batch_tokens=48"});
  CAPTURE(refused.error);
  CHECK(refused.exit_code == 2);
  for (const char* part :
       {"this is not the run in", "model.n_layer is 3, was 2", "optimizer.lr is 0.02, was 0.01",
        "run.precision is \"bf16\", was \"fp32\"", "run.seed is 4, was 3", "data.ignore_token is 1, was -1",
        "the number of tokens of a step is 48, was 72", "model.init_from="}) {
    CAPTURE(part);
    CHECK(contains(refused.error, part));
  }
  CHECK_FALSE(contains(refused.error, "max_steps"));

  const std::string shard = read_file(folder / "train_1.bin");
  std::string changed = shard;
  changed.back() ^= 1;
  write_file(folder / "train_1.bin", changed);
  CHECK(contains(train({}).error, "train_1.bin has other contents"));
  write_file(folder / "train_1.bin", shard + std::string(2, '\0'));
  CHECK(train({}).exit_code != 0);
  fs::remove(folder / "train_1.bin");
  CHECK(contains(train({}).error, "the number of data files is 2, was 3"));
  write_file(folder / "train_1.bin", shard);
  check_ok(train({}));
  CHECK(metrics_of(run_dir).size() == 40);

  CHECK(run(folder, {"train", config, "--resume", "--overwrite"}).exit_code == 2);
  CHECK(contains(run(folder, {"train", config}).error, "--resume"));
}

TEST_CASE("resume: the weights that others read are those of the newest checkpoint, whatever a crash left") {
  const TemporaryFolder folder;
  const std::string config = config_file(folder), run_dir = folder / "run";
  const Arguments train = {"train", config, "train.max_steps=13", "--resume"};
  check_ok(run(folder, train));
  const std::string weights = read_file(run_dir + "/model.safetensors");
  fs::remove(run_dir + "/model.safetensors");  // the crash came between the checkpoint's name and the link
  fs::create_directories(run_dir + "/checkpoints/.step_00000026.tmp");
  write_file(run_dir + "/config.yaml.123.tmp", "");
  check_ok(run(folder, train));  // which is finished
  CHECK(read_file(run_dir + "/model.safetensors") == weights);
  CHECK_FALSE(fs::exists(run_dir + "/checkpoints/.step_00000026.tmp"));
  CHECK_FALSE(fs::exists(run_dir + "/config.yaml.123.tmp"));
}

TEST_CASE("resume: a run that started from other weights goes on without them") {
  const TemporaryFolder folder;
  const std::string config = config_file(folder), source = folder / "run", run_dir = folder / "tuned";
  check_ok(run(folder, {"train", config, "train.max_steps=6"}));
  // Keys of the model that are left out are the source's.
  std::string text = read_file(config);
  const std::size_t model = text.find("model: "), end = text.find('\n', model);
  text.replace(model, end - model, "model: {init_from: " + source + "}");
  const std::string tuned = write_file(folder / "tuned.yaml", text);
  const Arguments train = {"train", tuned, "run.dir=" + run_dir, "--resume"};
  check_ok(run(folder, train));
  const std::string straight = final_state(run_dir);
  remove_after(run_dir, 13);
  fs::remove_all(source);
  check_ok(run(folder, train));
  CHECK(final_state(run_dir) == straight);
}

TEST_CASE("resume: what cannot be gone on with is refused, and nothing is lost") {
  const TemporaryFolder folder;
  const std::string config = config_file(folder), run_dir = folder / "run";
  const Arguments train = {"train", config, "train.max_steps=14", "--resume"};
  check_ok(run(folder, train));

  fs::resize_file(CheckpointFolder(RunDir(run_dir)).path(14) + "/optimizer.safetensors", 100);
  const Outcome older = run(folder, train);
  CHECK(older.exit_code == 0);
  CHECK(contains(older.error, "greyhound: warning: checkpoint of step 14 is not used: "));
  CHECK(contains(older.out, "resuming from " + run_dir + "/checkpoints/step_00000013"));
  CHECK(metrics_of(run_dir).size() == 14);

  // Weights without a checkpoint are not trained over.
  const std::string weights = read_file(run_dir + "/model.safetensors");
  fs::remove_all(run_dir + "/checkpoints");
  const Outcome refused = run(folder, train);
  CHECK(refused.exit_code == 2);
  CHECK(contains(refused.error, "holds trained weights, but no checkpoint to go on from"));
  CHECK(read_file(run_dir + "/model.safetensors") == weights);
  fs::create_directories(run_dir + "/checkpoints");  // emptied by somebody
  CHECK(run(folder, train).exit_code == 2);
  // --overwrite starts anew: no checkpoint of the old run stays.
  check_ok(run(folder, {"train", config, "train.max_steps=2", "schedule.warmup_steps=0", "--overwrite"}));
  CHECK(CheckpointFolder(RunDir(run_dir)).steps() == std::vector<std::int64_t>{2});
}

TEST_CASE("resume: a disk that is full leaves the last whole checkpoint, and says so") {
  const TemporaryFolder folder;
  const std::string config = config_file(folder), run_dir = folder / "run";
  check_ok(run(folder, {"train", config, "train.max_steps=13", "--resume"}));
  for (const char* policy : {"warn", "stop"}) {
    CAPTURE(policy);
    const Outcome outcome =
        Program(folder, {"train", config, "--resume", "checkpoint.every=5", concat("checkpoint.on_error=", policy)}, {},
                limit_files)
            .wait();
    CAPTURE(outcome.error);
    CHECK(outcome.exit_code == 1);  // the end of the run could not be saved
    CHECK(contains(outcome.error, "cannot write " + run_dir + "/checkpoints/"));
    CHECK(contains(outcome.error, "the checkpoint of step 15 was not saved"));
    const bool stopped = std::string(policy) == "stop";
    CHECK(contains(outcome.error, "greyhound: warning: the checkpoint of step 30") == !stopped);
    CHECK((metrics_of(run_dir).size() == 40) == !stopped);
    CHECK(CheckpointFolder(RunDir(run_dir)).steps() == std::vector<std::int64_t>{13});
  }
  check_ok(run(folder, {"train", config, "--resume"}));
}
