// What becomes of a run when one of its ranks fails, or was started otherwise than the rest: every rank ends, in
// bounded time, with a line that says which rank and why. Started by itself; starts mpirun.
#include "launched.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <sstream>

using namespace greyhound;
using namespace greyhound::testing;
namespace fs = std::filesystem;

namespace {

std::string toy_config(const TemporaryFolder& folder) {
  return write_file(folder / "toy.yaml", "run: {dir: " + folder / "run" + R"(, seed: 3, device: cpu}
model: {n_layer: 2, n_head: 2, n_embd: 16, block_size: 16, vocab_size: 40}
data: {train: synthetic}
train: {micro_batch: 2, batch_tokens: 192, max_steps: 12}
eval: {every: 0}
log: {every: 4}
)");
}

std::int64_t metrics_lines(const TemporaryFolder& folder) {
  const std::string text = read_file(folder / "run/metrics.jsonl");
  return std::count(text.begin(), text.end(), '\n');
}

// Lines of the program's own, without mpirun's remarks.
std::vector<std::string> error_lines(const LaunchedProgram& program) {
  std::istringstream text(program.error());
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    if (line.rfind("greyhound: error", 0) == 0) lines.push_back(line);
  }
  return lines;
}

bool gone(const LaunchedProgram& program, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    if (const int pid = program.pid_of(rank); pid > 0 && kill(pid, 0) == 0) return false;
  }
  return true;
}

// A failure that all ranks know of: one line, the exit code everywhere, nothing left running.
void check_agreed(const TemporaryFolder& folder, const Launch& launch, int exit_code, const std::string& line) {
  const LaunchedProgram program(folder, launch);
  const int code = program.wait();
  CAPTURE(program.error());
  CHECK(code == exit_code);
  const std::vector<std::string> lines = error_lines(program);
  REQUIRE(lines.size() == 1);
  CHECK(contains(lines[0], line));
  CHECK(LaunchedProgram::until([&] { return gone(program, launch.ranks); }, 5));
  CHECK_FALSE(fs::exists(folder / "run/model.safetensors"));
}

void check_killed_rank(const std::string& device, int ranks) {
  for (int victim = 0; victim < ranks; ++victim) {
    CAPTURE(victim);
    const TemporaryFolder folder;
    const LaunchedProgram program(folder, {ranks, {"train", toy_config(folder), device, "train.max_steps=1000000"}});
    REQUIRE(LaunchedProgram::until([&] { return metrics_lines(folder) >= 3; }, 60));
    const auto killed = std::chrono::steady_clock::now();
    kill(program.pid_of(victim), SIGKILL);
    const int code = program.wait();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - killed).count();
    CAPTURE(program.error());
    CHECK(code != 0);
    CHECK(seconds < 10);
    CHECK(LaunchedProgram::until([&] { return gone(program, ranks); }, 5));
    const std::vector<std::string> lines = error_lines(program);
    CHECK(lines.size() >= 1);  // mpirun may end a survivor before it has spoken
    for (const std::string& line : lines) {
      CHECK(contains(line, concat("rank ", victim, " (process ", program.pid_of(victim), " on ")));
      CHECK(contains(line, ") has ended"));
    }
    CHECK_FALSE(contains(program.out(), "stopped by"));  // mpirun's SIGTERM is no wish to stop
    CHECK_FALSE(fs::exists(folder / "run/model.safetensors"));
  }
}

void check_hanging_rank(const std::string& device, int ranks) {
  const TemporaryFolder folder;
  const LaunchedProgram program(
      folder, {ranks, {"train", toy_config(folder), device, "train.max_steps=1000000", "distributed.timeout_s=2"}});
  REQUIRE(LaunchedProgram::until([&] { return metrics_lines(folder) >= 3; }, 60));
  kill(program.pid_of(1), SIGSTOP);
  const int code = program.wait();
  CAPTURE(program.error());
  CHECK(code != 0);
  const std::vector<std::string> lines = error_lines(program);
  REQUIRE(!lines.empty());
  CHECK(contains(lines[0], "no answer from "));
  for (const std::string& line : lines) {  // later ones may also tell of ranks that have ended by then
    if (!contains(line, "no answer from ")) continue;
    CHECK(contains(line, concat("no answer from rank 1 (process ", program.pid_of(1), " on ")));
    CHECK(contains(line, " for 2 s"));
    CHECK_FALSE(contains(line, ", rank "));  // nobody else
  }
  CHECK(LaunchedProgram::until([&] { return gone(program, ranks); }, 10));
}

}  // namespace

TEST_CASE("ranks: a rank that is killed in a step ends the others, which name it and save nothing") {
  check_killed_rank("run.device=cpu", 3);
}
TEST_CASE("ranks: a rank that is killed in a step ends the others, which name it and save nothing, on CUDA" *
          doctest::test_suite("cuda")) {
  if (have_two_gpus()) check_killed_rank("run.device=cuda", 2);
}

TEST_CASE("ranks: a rank that hangs is named after distributed.timeout_s") { check_hanging_rank("run.device=cpu", 3); }
TEST_CASE("ranks: a rank that hangs is named after distributed.timeout_s, on CUDA" * doctest::test_suite("cuda")) {
  if (have_two_gpus()) check_hanging_rank("run.device=cuda", 2);
}

TEST_CASE("ranks: a run that is stopped as a whole for longer than distributed.timeout_s goes on") {
  const TemporaryFolder folder;
  const int ranks = 3;
  const LaunchedProgram program(
      folder, {ranks, {"train", toy_config(folder), "train.max_steps=1000000", "distributed.timeout_s=1"}});
  REQUIRE(LaunchedProgram::until([&] { return metrics_lines(folder) >= 3; }, 60));
  for (int rank = 0; rank < ranks; ++rank) kill(program.pid_of(rank), SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(3));
  const std::int64_t before = metrics_lines(folder);
  for (int rank = 0; rank < ranks; ++rank) kill(program.pid_of(rank), SIGCONT);
  CHECK(LaunchedProgram::until([&] { return metrics_lines(folder) >= before + 3; }, 60));
  kill(program.pid_of(0), SIGTERM);
  CHECK(program.wait() == 0);
  CHECK(error_lines(program).empty());
}

TEST_CASE("ranks: another configuration on one rank is refused with the keys and the ranks") {
  const TemporaryFolder folder;
  check_agreed(folder,
               {3,
                {"train", toy_config(folder), "optimizer.lr=$LR", "loss.softcap=$CAP"},
                "LR=1e-3; CAP=0; [ $RANK != 1 ] || { LR=2e-3; CAP=30; }"},
               2,
               "the configurations of the ranks differ: loss.softcap is 0 on ranks 0 and 2 and 30 on rank 1; "
               "optimizer.lr is 0.001 on ranks 0 and 2 and 0.002 on rank 1");
}

TEST_CASE("ranks: other files on one rank are refused with the files and the ranks") {
  // Every rank has a folder of its own behind the same path: its working directory.
  const TemporaryFolder folder;
  for (const char* rank : {"0", "1"}) {
    fs::create_directory(folder / rank);
    for (const char* shard : {"a.bin", "b.bin", "c.bin"}) {
      write_file(folder / (std::string(rank) + "/" + shard), shard_bytes(std::vector<std::uint16_t>(400, 7)));
    }
  }
  const Launch launch = {2, {"train", toy_config(folder), "data.train=*.bin"}, "cd '" + folder.path() + "'/$RANK"};
  SUBCASE("one is not there") {
    fs::remove(folder / "1/b.bin");
    check_agreed(folder, launch, 2, "the data of the ranks differs: b.bin is 1824 bytes, hash ");
  }
  SUBCASE("one holds something else") {
    std::vector<std::uint16_t> ids(400, 7);
    ids[399] = 8;
    write_file(folder / "1/c.bin", shard_bytes(ids));
    check_agreed(folder, launch, 2, "the data of the ranks differs: c.bin is 1824 bytes, hash ");
  }
  SUBCASE("none is there") {
    for (const char* shard : {"a.bin", "b.bin", "c.bin"}) fs::remove(folder / (std::string("1/") + shard));
    check_agreed(folder, launch, 2, "rank 1: data.train: no file matches *.bin");
  }
}

TEST_CASE("ranks: a mistake that all of them find is one line") {
  const TemporaryFolder folder;
  const std::string config = toy_config(folder);
  check_agreed(folder, {2, {"train", config, "optimizer.learning_rte=1"}}, 2,
               "error: override 'optimizer.learning_rte");
  check_agreed(folder, {2, {"train", config, "train.batch_tokens=48"}}, 2,
               "3 rows of 16 tokens do not divide among 2 ranks");
}

TEST_CASE("ranks: rank 0 without room for its files ends the run") {
  const TemporaryFolder folder;
  const std::string config = toy_config(folder);
  // Writing beyond the limit is an error instead of a signal that ends the program.
  const std::string no_signal = "trap '' XFSZ; ";
  SUBCASE("at the start") {
    check_agreed(folder, {2, {"train", config}, no_signal + "[ $RANK != 0 ] || ulimit -f 0"}, 1,
                 "error: rank 0: cannot write " + folder / "run/config.yaml");
  }
  SUBCASE("in the middle") {
    const LaunchedProgram program(
        folder, {2, {"train", config, "train.max_steps=1000000", "checkpoint.on_error=stop"}, no_signal});
    REQUIRE(LaunchedProgram::until([&] { return metrics_lines(folder) >= 3; }, 60));
    const rlimit none = {1, 1};
    REQUIRE(prlimit(program.pid_of(0), RLIMIT_FSIZE, &none, nullptr) == 0);
    const int code = program.wait();
    CAPTURE(program.error());
    CHECK(code != 0);
    const std::vector<std::string> lines = error_lines(program);
    REQUIRE(!lines.empty());
    CHECK(contains(lines[0], "greyhound: error (rank 0): " + folder / "run/metrics.jsonl: cannot be written: "));
    CHECK(LaunchedProgram::until([&] { return gone(program, 2); }, 5));
  }
}

TEST_CASE("ranks: SIGTERM to mpirun's ranks saves the weights of the step on rank 0") {
  const TemporaryFolder folder;
  const LaunchedProgram program(folder, {2, {"train", toy_config(folder), "train.max_steps=1000000"}});
  REQUIRE(LaunchedProgram::until([&] { return metrics_lines(folder) >= 3; }, 60));
  kill(program.pid_of(1), SIGTERM);  // one rank is told, all agree
  const int code = program.wait();
  CAPTURE(program.error());
  CHECK(code == 0);
  CHECK(contains(program.out(), "stopped by another rank after step "));
  CHECK(fs::exists(folder / "run/model.safetensors"));
}
