// The program as its users meet it: exit codes, messages, files.
#include "program.h"
#include "test_files.h"

#include <doctest/doctest.h>
#include <greyhound/core/device.h>
#include <greyhound/core/version.h>
#include <greyhound/train/safetensors.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

using namespace greyhound;
using namespace greyhound::testing;
namespace fs = std::filesystem;

namespace {

std::string config_file(const TemporaryFolder& folder) {
  return write_file(folder / "toy.yaml", "run: {dir: " + folder.path() + R"(/run, seed: 3}
model: {n_layer: 2, n_head: 2, n_embd: 16, block_size: 16}
data: {train: )" +
                                             write_file(folder / "text.txt",
                                                        [] {
                                                          std::string text;
                                                          for (int i = 0; i < 200; ++i)
                                                            text += "She was fond of books; ";
                                                          return text;
                                                        }()) +
                                             R"(, tokenizer: char}
optimizer: {lr: 1e-2}
train: {micro_batch: 4, max_steps: 12}
eval: {every: 5, batches: 3}
sample: {every: 6, tokens: 20, prompt: She}
log: {every: 4}
)");
}

// One clear line.
void check_error(const Outcome& outcome, int exit_code, const std::string& part) {
  CAPTURE(outcome.error);
  CHECK(outcome.exit_code == exit_code);
  CHECK(outcome.error.rfind("greyhound: error: ", 0) == 0);
  CHECK(std::count(outcome.error.begin(), outcome.error.end(), '\n') == 1);
  CHECK(contains(outcome.error, part));
}

}  // namespace

TEST_CASE("program: threads that wait sleep, unless the user chose otherwise") {
  const TemporaryFolder folder;
  unsetenv("OMP_WAIT_POLICY");
  // libgomp prints what it read; the GNU library alone is looked at.
  const Outcome own = run(folder, {"--version"}, {"OMP_DISPLAY_ENV=true"});
  if (own.error.find("OMP_WAIT_POLICY") == std::string::npos) return;  // another OpenMP
  CHECK(own.error.rfind("OMP_WAIT_POLICY = 'PASSIVE'") != std::string::npos);
  const Outcome chosen = run(folder, {"--version"}, {"OMP_DISPLAY_ENV=true", "OMP_WAIT_POLICY=active"});
  CHECK(chosen.error.rfind("OMP_WAIT_POLICY = 'PASSIVE'") == std::string::npos);
  CHECK(own.out == chosen.out);
}

TEST_CASE("program: --help and --version") {
  const TemporaryFolder folder;
  const Outcome help = run(folder, {"--help"});
  CHECK(help.exit_code == 0);
  CHECK(help.error == "");
  for (const char* part : {"train", "sample", "eval", "export", "--version", "Exit codes"})
    CHECK(contains(help.out, part));
  CHECK(contains(run(folder, {"train", "--help"}).out, "--overwrite"));
  CHECK(contains(run(folder, {"export", "--help"}).out, "--dtype"));

  for (const char* command : {"train", "sample", "eval", "tokenize", "export"}) {
    CAPTURE(command);
    CHECK(contains(run(folder, {command, "--help"}).out, "Exit codes: 0"));
  }

  const Outcome version = run(folder, {"--version"});
  CHECK(version.exit_code == 0);
  CHECK(version.out.rfind(std::string("greyhound ") + GREYHOUND_VERSION + "\n", 0) == 0);
  for (const char* part : {"CPU", "products by", "thread", "CUDA", "cuBLASLt", "NCCL", "MPI"}) {
    CAPTURE(part);
    CHECK(contains(version.out, part));
  }
}

TEST_CASE("program: info says what was built, what is found and which device a run takes") {
  const TemporaryFolder folder;
  const Outcome info = run(folder, {"info"}, {"CUDA_VISIBLE_DEVICES="});
  CHECK(info.exit_code == 0);
  for (const char* part : {"greyhound ", "CUDA ", "devices\n  cpu       CPU, ", "device: auto takes cpu: "}) {
    CAPTURE(part);
    CHECK(contains(info.out, part));
  }
  CHECK_FALSE(contains(info.out, "cuda:0"));
}

TEST_CASE("program: mistakes on the command line and in the configuration exit with 2 and one line") {
  const TemporaryFolder folder;
  const std::string config = config_file(folder);
  check_error(run(folder, {}), 2, "expected a command");
  check_error(run(folder, {"tarin"}), 2, "tarin");
  check_error(run(folder, {"train"}), 2, "CONFIG");
  check_error(run(folder, {"train", config, "--overwite"}), 2, "--overwite");
  check_error(run(folder, {"sample", folder.path(), "--temperature", "-1"}), 2, "--temperature");
  const Arguments wrong[] = {{"--temperature", "nan"},  {"--temperature", "inf"}, {"--temperature", "1e999"},
                             {"--tokens", "-1"},        {"--tokens", "1.5"},      {"--tokens", "99999999999999999999"},
                             {"--top-k", "4294967296"}, {"--seed", "-1"}};
  for (const Arguments& option : wrong) {
    CAPTURE(option[1]);
    check_error(run(folder, {"sample", folder.path(), option[0], option[1]}), 2, option[0] + ": ");
  }
  check_error(run(folder, {"eval", folder.path(), "--batches", "99999999999999999999"}), 2, "--batches: ");
  // Options are called by their own names.
  check_error(run(folder, {"tokenize", "a", "--tokenizer", "b", "--out", "c", "--shard-tokens", "-1"}), 2,
              "error: --shard-tokens: expected a whole number from 1 to 2147483647, got -1 (see");
  check_error(run(folder, {"tokenize", "a", "--tokenizer", "b", "--out", "c", "--val-fraction", "1"}), 2,
              "error: --val-fraction: expected a number from 0 to below 1, got 1 (see");
  check_error(run(folder, {"sample", folder.path(), "--top-k", "x"}), 2,
              "error: --top-k: expected a whole number, got x (see");
  check_error(run(folder, {"sample", folder.path(), "--seed", "1", "--seed", "2"}), 2,
              "--seed: given 2 times, expected once");
  check_error(run(folder, {"train", folder / "none.yaml"}), 2, "none.yaml");
  check_error(run(folder, {"train", config, "optimizer.learning_rte=1"}), 2, "learning_rte");
  check_error(run(folder, {"train", config, "train.max_steps=3.5"}), 2, "train.max_steps");
  check_error(run(folder, {"train", config, "run.device=cuda"}, {"CUDA_VISIBLE_DEVICES="}), 2, "device cuda: ");
  check_error(run(folder, {"sample", folder.path(), "--device", "gpu"}), 2, "--device");
  check_error(run(folder, {"train", config, "sample.prompt=xyz"}), 2, "");
  check_error(run(folder, {"train", config, "model.n_head=3"}), 2, "16");
  check_error(run(folder, {"sample", folder.path()}), 2, "is not the folder of a run");
  check_error(run(folder, {"export", "--format", "hf", folder / "none", folder / "out"}), 2,
              "is not the folder of a run");
  check_error(run(folder, {"export", folder / "none", folder / "out"}), 2, "--format");
  check_error(run(folder, {"export", "--format", "onnx", folder / "none", folder / "out"}), 2, "onnx");
  check_error(run(folder, {"train", config, "model.init_from=" + folder / "none"}), 2, "model.init_from");
  check_error(run(folder, {"eval", folder / "none"}), 2, "is not the folder of a run");
  const std::string bad = write_file(folder / "bad.yaml", "train:\n  max_step: 3\n");
  check_error(run(folder, {"train", bad}), 2, bad + ":2:3");
  CHECK_FALSE(fs::exists(folder / "run"));
}

TEST_CASE("program: failures at run time exit with 1, one line, and leave nothing") {
  const TemporaryFolder folder;
  const std::string config = config_file(folder);
  check_error(run(folder, {"train", config, "run.dir=" + config + "/run"}), 1, "run.dir " + config + "/run");
  check_error(run(folder, {"train", config, "run.dir=/proc/greyhound"}), 1, "run.dir /proc/greyhound");

  // Terabytes of activations in a model of 3 million parameters.
  const Outcome memory =
      run(folder, {"train", config, "data.train=synthetic", "model.vocab_size=17", "sample.every=0", "model.n_layer=64",
                   "model.n_embd=64", "model.block_size=64", "train.micro_batch=262144", "eval.every=0"});
  check_error(memory, 1, "out of memory on ");
  CHECK(contains(memory.error, "is the largest that fits (now 262144)"));
  for (const char* part : {"parameters", "gradients", "optimiser", "activations", "loss workspace", "total", "free"}) {
    CAPTURE(part);
    CHECK(contains(memory.out, part));
  }
  check_error(run(folder, {"train", config, "data.train=synthetic", "model.vocab_size=17", "sample.every=0",
                           "train.batch_tokens=1600000000000"}),
              1, "train.batch_tokens");
  CHECK_FALSE(fs::exists(folder / "run"));
}

TEST_CASE("program: 16384 layers are planned at once") {
  const TemporaryFolder folder;
  check_error(run(folder, {"train", config_file(folder), "model.n_layer=16384", "model.n_embd=2048",
                           "train.micro_batch=1", "sample.every=0"}),
              1, "out of memory on ");
}

TEST_CASE("program: a step that fails leaves the weights of the steps before it") {
  const TemporaryFolder folder;
  // Steps of 64 tokens; the third step meets token 1000.
  std::vector<std::uint16_t> ids(64 * 5 + 1, 3);
  ids[64 * 2 + 7] = 1000;
  const std::string data = write_file(folder / "a.bin", shard_bytes(ids));
  const Arguments arguments = {"train", config_file(folder), "data.train=" + data, "model.vocab_size=100",
                               "sample.every=0"};
  const Outcome outcome = run(folder, arguments);
  CAPTURE(outcome.error);
  CHECK(outcome.exit_code == 1);
  CHECK(contains(outcome.error, "token id 1000 is outside the vocabulary"));
  CHECK(SafetensorsFile(folder / "run/model.safetensors").metadata().at("step") == "2");
  CHECK(contains(outcome.out, "1 token shard,"));
  CHECK(fs::exists(folder / "run/tokenizer.json"));

  // When they cannot be saved either, that is not what is reported as the error, and the old ones are still there.
  const std::string weights = read_file(folder / "run/model.safetensors");
  Arguments again = arguments;
  again.push_back("--overwrite");
  const Outcome both = Program(folder, again, {}, limit_files).wait();
  CAPTURE(both.error);
  CHECK(both.exit_code == 1);
  CHECK(contains(both.error, "greyhound: warning: step 2 could not be saved"));
  CHECK(contains(both.error, "greyhound: error: " + data));
  CHECK(read_file(folder / "run/model.previous.safetensors") == weights);
  CHECK_FALSE(fs::exists(folder / "run/model.safetensors"));
  CHECK(run(folder, again).exit_code == 1);
  CHECK(read_file(folder / "run/model.safetensors") == weights);
  CHECK_FALSE(fs::exists(folder / "run/model.previous.safetensors"));
}

TEST_CASE("program: trains, samples, evaluates; refuses to write over a run") {
  const TemporaryFolder folder;
  const std::string config = config_file(folder), run_dir = folder / "run";
  const Outcome first = run(folder, {"train", config});
  CAPTURE(first.error);
  REQUIRE(first.exit_code == 0);
  CHECK(first.error == "");
  const bool gpu = cuda_device_count() > 0;
  for (const char* part :
       {gpu ? "compute capability" : "CPU", gpu ? "mfu" : "no GPU", "parameters", "step  1/12", "step  4/12",
        "validation loss", "tok/s", "left", "sample after step 12", "model.safetensors", "metrics.jsonl"}) {
    CAPTURE(part);
    CHECK(contains(first.out, part));
  }
  for (const char* name : {"config.yaml", "tokenizer.json", "metrics.jsonl", "model.safetensors"}) {
    CHECK(fs::exists(run_dir + "/" + name));
  }
  const std::vector<nlohmann::json> lines = metrics_of(run_dir);
  REQUIRE(lines.size() == 12);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    CHECK(lines[i]["step"] == i + 1);
    CHECK(lines[i]["tokens"] == (i + 1) * 64);
    CHECK(lines[i]["ranks"] == 1);
    CHECK(lines[i]["skipped_steps"] == 0);
    CHECK(lines[i]["tokens_per_second"].get<double>() > 0);
    CHECK(lines[i].contains("val_loss") == (i + 1 == 5 || i + 1 == 10 || i + 1 == 12));
  }
  CHECK(lines.back()["loss"].get<double>() < lines.front()["loss"].get<double>());

  // The stored weights give the loss that training logged.
  char expected[64];
  std::snprintf(expected, sizeof expected, "step 12, validation loss %.6f", lines.back()["val_loss"].get<double>());
  const Outcome evaluation = run(folder, {"eval", run_dir});
  CHECK(evaluation.exit_code == 0);
  CAPTURE(evaluation.out);
  CHECK(contains(evaluation.out, expected));

  const Arguments sample = {"sample", run_dir, "--prompt", "She was", "--tokens", "200", "--seed", "7", "--top-k", "5"};
  const Outcome text = run(folder, sample);
  CHECK(text.exit_code == 0);
  CHECK(text.out.rfind("She was", 0) == 0);
  CHECK(text.out.size() == 7 + 200 + 1);
  CHECK(run(folder, sample).out == text.out);
  CHECK(run(folder, {"sample", run_dir, "--temperature", "0", "--tokens", "3"}).out.size() == 3 + 3 + 1);
  check_error(run(folder, {"sample", run_dir, "--prompt", "~"}), 2, "");

  // Output that goes nowhere is a failure; a tokenizer that is gone is named.
  for (const Arguments& command : {Arguments{"sample", run_dir}, Arguments{"eval", run_dir}}) {
    std::string line = std::string("'") + GREYHOUND_PROGRAM + "'";
    for (const std::string& argument : command) line += " '" + argument + "'";
    const int status = std::system((line + " >/dev/full 2>" + (folder / "full")).c_str());
    CHECK(WEXITSTATUS(status) == 1);
    CHECK(contains(read_file(folder / "full"), "standard output cannot be written"));
  }
  fs::rename(run_dir + "/tokenizer.json", folder / "kept");
  check_error(run(folder, {"sample", run_dir}), 2, "it holds no tokenizer.json");
  check_error(run(folder, {"eval", run_dir}), 2, "it holds no tokenizer.json");
  fs::rename(folder / "kept", run_dir + "/tokenizer.json");

  // A second run: refused, then told to replace.
  const std::string weights = read_file(run_dir + "/model.safetensors");
  check_error(run(folder, {"train", config, "train.max_steps=2"}), 2, "--overwrite");
  CHECK(metrics_of(run_dir).size() == 12);
  CHECK(read_file(run_dir + "/model.safetensors") == weights);
  write_file(run_dir + "/notes.txt", "mine");
  check_error(run(folder, {"train", config, "--overwrite", "data.train=" + folder / "none.txt"}), 2, "none.txt");
  CHECK(run(folder, {"train", config, "--overwrite", "train.batch_tokens=1600000000000"}).exit_code == 1);
  CHECK(metrics_of(run_dir).size() == 12);
  CHECK(read_file(run_dir + "/model.safetensors") == weights);
  CHECK(run(folder, {"train", config, "train.max_steps=2", "--overwrite"}).exit_code == 0);
  CHECK(metrics_of(run_dir).size() == 2);
  CHECK(read_file(run_dir + "/notes.txt") == "mine");
}

TEST_CASE("program: the same bits in every logged loss and in the weights, run after run, with any number of threads") {
  const TemporaryFolder folder;
  const std::string config = config_file(folder);
  const auto train = [&](const std::string& name, const std::string& threads, const Arguments& more = {}) {
    Arguments arguments = {"train", config, "run.dir=" + folder / name, "model.dropout=0.1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    REQUIRE(run(folder, arguments, {"OMP_NUM_THREADS=" + threads}).exit_code == 0);
    return read_file(folder / name + "/model.safetensors");
  };
  const std::string weights = train("a", "1");
  CHECK(train("b", "1") == weights);
  CHECK(train("c", "2") == weights);
  CHECK(curve_of(folder / "b") == curve_of(folder / "a"));
  CHECK(curve_of(folder / "c") == curve_of(folder / "a"));

  // Without evaluation and samples the training curve is the same.
  CHECK(train("d", "2", {"eval.every=0", "sample.every=0"}) == weights);
  const std::vector<nlohmann::json> with = metrics_of(folder / "a"), without = metrics_of(folder / "d");
  REQUIRE(without.size() == with.size());
  for (std::size_t i = 0; i < with.size(); ++i) {
    CHECK(without[i]["loss"] == with[i]["loss"]);
    CHECK(without[i]["grad_norm"] == with[i]["grad_norm"]);
    CHECK_FALSE(without[i].contains("val_loss"));
  }
}

TEST_CASE("program: Ctrl-C and SIGTERM save the weights at the end of the step and exit with 0") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(signal);
    const TemporaryFolder folder;
    const Program program(folder, {"train", config_file(folder), "train.max_steps=1000000", "eval.every=0",
                                   "sample.every=0", "log.every=0"});
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const std::string metrics = folder / "run/metrics.jsonl";
    while ((!fs::exists(metrics) || fs::file_size(metrics) == 0) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    program.send(signal);
    const Outcome outcome = program.wait();
    CAPTURE(outcome.error);
    CHECK(outcome.exit_code == 0);
    const char* name = signal == SIGINT ? "Ctrl-C" : signal == SIGTERM ? "SIGTERM" : "SIGHUP";
    CHECK(contains(outcome.out, std::string("stopped by ") + name));
    const SafetensorsFile weights(folder / "run/model.safetensors");
    CHECK(weights.metadata().at("step") == std::to_string(metrics_of(folder / "run").size()));
  }
}

TEST_CASE("program: Ctrl-C ends a long sample") {
  const TemporaryFolder folder;
  const Program program(folder,
                        {"train", config_file(folder), "eval.every=0", "sample.every=1", "sample.tokens=1000000000"});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const std::string metrics = folder / "run/metrics.jsonl";
  while ((!fs::exists(metrics) || fs::file_size(metrics) == 0) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the sample has begun
  program.send(SIGINT);
  const Outcome outcome = program.wait();
  CAPTURE(outcome.error);
  CHECK(outcome.exit_code == 0);
  CHECK(contains(outcome.error, "stopping after this step; Ctrl-C again ends at once"));
  CHECK(SafetensorsFile(folder / "run/model.safetensors").metadata().at("step") == "1");
}

TEST_CASE("program: a run that diverges ends with 1, names the tensor and keeps the last good weights") {
  const TemporaryFolder folder;
  const Outcome outcome = run(folder, {"train", config_file(folder), "optimizer.lr=1e9", "optimizer.grad_clip=0",
                                       "sample.every=1", "eval.every=1"});
  CAPTURE(outcome.error);
  REQUIRE(outcome.exit_code == 1);
  CHECK(contains(outcome.error, "steps in a row"));
  CHECK(contains(outcome.error, "the first such tensor is "));
  CHECK(fs::exists(folder / "run/model.safetensors"));
  const std::vector<nlohmann::json> lines = metrics_of(folder / "run");  // valid JSON all the same
  CHECK(lines.back()["skipped_steps"] == 3);
  CHECK(lines.back()["loss"].is_null());
}

TEST_CASE("program: weights are saved every checkpoint.every steps") {
  const TemporaryFolder folder;
  const Program program(folder, {"train", config_file(folder), "train.max_steps=1000000", "eval.every=0",
                                 "sample.every=0", "checkpoint.every=2"});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!fs::exists(folder / "run/model.safetensors") && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const SafetensorsFile weights(folder / "run/model.safetensors");
  CHECK(std::stoll(weights.metadata().at("step")) % 2 == 0);
  program.send(SIGKILL);
  CHECK(program.wait().exit_code == 128 + SIGKILL);
}
