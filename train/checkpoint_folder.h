// The checkpoints of a run, one folder each: checkpoints/step_00000100.
#pragma once

#include <greyhound/train/checkpoint.h>
#include <greyhound/train/run_dir.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace greyhound {

class CheckpointFolder {
 public:
  explicit CheckpointFolder(const RunDir& run_dir) : run_dir_(run_dir) {}

  // Steps of which there is a folder, whole or not, ascending.
  std::vector<std::int64_t> steps() const;
  std::string path(std::int64_t step) const;

  // The newest whole one. Those above it that are not are renamed to "step_00000100.damaged", each with a line in
  // `warnings`. None when there are no checkpoints; throws a runtime Error when there are and none is whole.
  std::optional<Checkpoint> newest(std::vector<std::string>& warnings) const;

  // Writes into a folder beside the others, which gets its name when it is whole. model.safetensors of the run becomes
  // its weights, and the folder is tidied. Throws a runtime Error that names the file; earlier checkpoints are
  // untouched then.
  void save(const CheckpointInfo& info, const ParameterList& parameters, const std::map<std::string, Tensor>& tensors,
            std::int64_t keep) const;

  // Makes model.safetensors of the run the checkpoint's: another name of the same file, or a copy where the file system
  // has no links.
  void publish_weights(std::int64_t step) const;
  // Removes what an interrupted save left, and all but the newest `keep` (0: none) of the checkpoints up to `step`.
  void tidy(std::int64_t step, std::int64_t keep) const;
  void remove_all() const;

 private:
  RunDir run_dir_;
};

}  // namespace greyhound
