// What becomes of a run whose files cannot be written.
#include "test_files.h"
#include "toy_run.h"

#include <doctest/doctest.h>
#include <greyhound/train/checkpoint_saver.h>
#include <greyhound/train/resume.h>

using namespace greyhound;
using namespace greyhound::testing;
namespace fs = std::filesystem;

namespace {

struct SavingRun {
  TemporaryFolder folder;
  ToyRun run;
  RunDir run_dir{folder / "run"};
  int files_made = 0;
  std::shared_ptr<FolderLock> lock = make_files();
  CheckpointSaver saver;

  explicit SavingRun(const std::vector<std::string>& overrides)
      : run(toy(overrides)),
        saver(run.context, run.config, run_dir, lock, describe_run(run.config, run.batch, run.data.tokenizer, {}),
              run.buffers.model.parameters(), *run.trainer, [this] { make_files(); }) {
    lock.reset();  // the saver's
    run.trainer->step();
  }
  std::shared_ptr<FolderLock> make_files() {
    ++files_made;
    fs::create_directories(run_dir.path());
    write_file(run_dir.config(), to_yaml(run.config));
    return files_made == 1 ? std::make_shared<FolderLock>(run_dir.path()) : nullptr;
  }
  void occupy() { write_file(run_dir.checkpoints(), "a file where a folder must be"); }
  std::vector<std::int64_t> steps() const { return CheckpointFolder(run_dir).steps(); }
};

const std::vector<std::vector<std::string>> ways = {{"checkpoint.every=1"},
                                                    {"checkpoint.every=1", "checkpoint.background=false"}};

}  // namespace

TEST_CASE_ON_EACH_BACKEND(
    "saving: in the background the state is that of the moment, whatever training does meanwhile") {
  SavingRun saving({"checkpoint.every=1"});
  const StateCopy at_save = state_of(saving.run);
  saving.saver.save();
  for (int step = 0; step < 3; ++step) saving.run.trainer->step();
  saving.saver.save();  // waits for the first
  saving.saver.save_now();
  CHECK(saving.steps() == std::vector<std::int64_t>{1, 4});

  ToyRun other(saving.run.config);
  Checkpoint(CheckpointFolder(saving.run_dir).path(1))
      .restore(other.context, other.buffers.model.parameters(), *other.trainer);
  CHECK(state_of(other) == at_save);
}

TEST_CASE("saving: a failure is a warning or the end, as the run says, and the next save works") {
  for (std::vector<std::string> overrides : ways) {
    CAPTURE(overrides.size());
    SavingRun warns(overrides);
    warns.saver.save_now();
    warns.run.trainer->step();
    fs::rename(warns.run_dir.checkpoints(), warns.folder / "aside");
    warns.occupy();
    warns.saver.save();
    warns.saver.check();
    fs::remove(warns.run_dir.checkpoints());
    fs::rename(warns.folder / "aside", warns.run_dir.checkpoints());
    warns.saver.save();
    warns.saver.save_now();
    CHECK(warns.steps() == std::vector<std::int64_t>{1, 2});

    overrides.push_back("checkpoint.on_error=stop");
    SavingRun stops(overrides);
    stops.occupy();
    const std::string message = error_of([&] {
      stops.saver.save();
      stops.saver.save();  // a failure in the background shows at the next save at the latest
    });
    CHECK(contains(message, "1: the checkpoint of step 1 was not saved: "));
    CHECK(contains(message, stops.run_dir.checkpoints()));
  }
}

TEST_CASE("saving: the last save of a run must succeed") {
  SavingRun saving({});
  saving.occupy();
  CHECK(contains(error_of([&] { saving.saver.save_now(); }),
                 "1: cannot make the folder " + saving.run_dir.checkpoints()));
  fs::remove(saving.run_dir.checkpoints());
  saving.saver.save_now();
  CHECK(saving.steps() == std::vector<std::int64_t>{1});
}

TEST_CASE("saving: a run folder that somebody removed is made again, or ends the run") {
  for (const std::vector<std::string>& overrides : ways) {
    SavingRun saving(overrides);
    saving.saver.save();
    saving.saver.save_now();
    fs::remove_all(saving.run_dir.path());
    saving.run.trainer->step();
    saving.saver.save();
    saving.saver.save_now();
    CHECK(saving.files_made == 2);
    CHECK(fs::exists(saving.run_dir.config()));
    CHECK(saving.steps() == std::vector<std::int64_t>{2});
  }
  SavingRun replaced({});
  fs::rename(replaced.run_dir.path(), replaced.folder / "moved");
  fs::create_directories(replaced.run_dir.path());
  CHECK(contains(error_of([&] { replaced.saver.save_now(); }), "another folder stands there now"));
  CHECK(fs::is_empty(replaced.run_dir.path()));
  SavingRun stops({"checkpoint.on_error=stop"});
  fs::remove_all(stops.run_dir.path());
  CHECK(contains(error_of([&] { stops.saver.save_now(); }), "1: run.dir " + stops.run_dir.path() + ": was removed"));
}
