#include "test_files.h"

#include <doctest/doctest.h>
#include <greyhound/train/run_dir.h>

#include <filesystem>

using namespace greyhound;
using namespace greyhound::testing;
namespace fs = std::filesystem;

TEST_CASE("run folder: the check leaves nothing behind") {
  const TemporaryFolder folder;
  const RunDir run(folder / "a/b/c");
  run.check(false);
  CHECK_FALSE(fs::exists(folder / "a"));
  run.make_folder();
  CHECK(fs::is_directory(folder / "a/b/c"));
  run.check(false);
  CHECK(fs::is_empty(folder / "a/b/c"));
}

TEST_CASE("run folder: a run that is there is refused, or replaced without touching other files") {
  const TemporaryFolder folder;
  const RunDir run(folder / "run");
  run.make_folder();
  write_file(run.metrics(), "{}\n");
  write_file(folder / "run/notes.txt", "mine");
  const std::string refused = error_of([&] { run.check(false); });
  CHECK(contains(refused, "2: "));
  CHECK(contains(refused, "metrics.jsonl"));
  CHECK(contains(refused, "--overwrite"));
  run.check(true);
  CHECK(read_file(run.metrics()) == "{}\n");
  write_file(run.weights(), "old");
  run.remove_files();
  CHECK_FALSE(fs::exists(run.metrics()));
  CHECK_FALSE(fs::exists(run.weights()));  // they do not fit the new configuration
  CHECK(read_file(run.previous_weights()) == "old");
  CHECK(read_file(folder / "run/notes.txt") == "mine");
}

TEST_CASE("run folder: one that cannot be written is an error that names it") {
  const TemporaryFolder folder;
  write_file(folder / "file", "x");
  for (const std::string& path : {folder / "file", folder / "file/run", std::string("/proc/greyhound/run")}) {
    CAPTURE(path);
    const std::string message = error_of([&] { RunDir(path).check(false); });
    CHECK(contains(message, "1: run.dir " + path));
  }
}

TEST_CASE("run folder: a command that reads a run says what is missing") {
  const TemporaryFolder folder;
  CHECK(contains(error_of([&] { RunDir(folder / "none").require_run(); }), "is not the folder of a run"));
  CHECK(contains(error_of([&] { RunDir(folder.path()).require_run(); }), "config.yaml"));
  write_file(folder / "config.yaml", "");
  CHECK(contains(error_of([&] { RunDir(folder.path()).require_run(); }), "model.safetensors"));
  write_file(folder / "model.safetensors", "");
  CHECK(contains(error_of([&] { RunDir(folder.path()).require_run(); }), "tokenizer.json"));
}
