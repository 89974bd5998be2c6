// When and how a run is saved: in the background between steps, or at once at its end.
#pragma once

#include <greyhound/train/checkpoint_folder.h>
#include <greyhound/train/config.h>
#include <greyhound/train/input_file.h>
#include <greyhound/train/state_snapshot.h>
#include <greyhound/train/trainer.h>

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>

namespace greyhound {

// Of the root rank.
class CheckpointSaver {
 public:
  // lock: of the run's folder. info: describe_run(). Takes the memory for copies of the state when checkpoints are
  // saved in the background. `make_run_files` writes the other files of the folder anew when somebody removed it.
  CheckpointSaver(const Context& context, const Config& config, const RunDir& run_dir, std::shared_ptr<FolderLock> lock,
                  CheckpointInfo info, const ParameterList& parameters, Trainer& trainer,
                  std::function<void()> make_run_files);
  ~CheckpointSaver();  // waits for a write that goes on

  // Saves the state of the steps so far, in the background with checkpoint.background. What fails is treated as
  // checkpoint.on_error says, here or at a later check(): `warn` prints a warning, `stop` throws the runtime Error.
  void save();
  void check();

  // Throws a runtime Error when another folder stands at run.dir now: what is in it is another run's.
  void check_folder() const;
  bool has_checkpoints() const { return !folder_.steps().empty(); }

  // Saves and waits for it; does nothing when the state is saved already. Throws a runtime Error, whatever
  // checkpoint.on_error says.
  void save_now();

 private:
  void write();   // the snapshot
  void finish();  // waits for the background, throws what it threw
  void take_snapshot();
  void find_folder();                                     // makes it again when it is gone
  void attempt(const std::function<void()>& work) const;  // what it throws is treated as checkpoint.on_error says

  Config config_;
  RunDir run_dir_;
  std::shared_ptr<FolderLock> lock_;
  CheckpointFolder folder_;
  CheckpointInfo info_;
  ParameterList parameters_;
  Trainer& trainer_;
  std::function<void()> make_run_files_;
  StateSnapshot snapshot_;
  std::optional<std::int64_t> saved_step_;
  std::future<void> background_;
};

// Host memory that saving in the background takes.
std::int64_t checkpoint_snapshot_bytes(const Config& config, const ParameterList& parameters);

}  // namespace greyhound
