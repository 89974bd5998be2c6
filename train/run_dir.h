// The folder of a run, and the files that a run writes there.
#pragma once

#include <string>
#include <vector>

namespace greyhound {

class RunDir {
 public:
  explicit RunDir(const std::string& path) : path_(path) {}

  const std::string& path() const { return path_; }
  std::string config() const { return path_ + "/config.yaml"; }  // resolved: every key
  std::string tokenizer() const { return path_ + "/tokenizer.json"; }
  std::string metrics() const { return path_ + "/metrics.jsonl"; }
  std::string weights() const { return path_ + "/model.safetensors"; }
  std::string previous_weights() const { return path_ + "/model.previous.safetensors"; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }

  // Files of a run that are there now.
  std::vector<std::string> existing() const;

  // Throws when the folder holds a run (usage Error, unless `may_hold_run`) or a file cannot be made in it (runtime
  // Error). Leaves nothing behind, not even a folder: it is asked long before there is something to write.
  void check(bool may_hold_run) const;

  // Makes the folder, and leaves what is there.
  void make_folder() const;
  // Removes what a write that was interrupted left.
  void remove_unfinished_files() const;
  // Removes the files of an earlier run but its checkpoints, and no others. Its weights stay, under another name, until
  // there are those of the new run: a run that fails early costs nobody a trained model.
  void remove_files() const;

  // For commands that read a run: throws a usage Error unless its config, weights and tokenizer are there.
  void require_run() const;

 private:
  std::string path_;
};

}  // namespace greyhound
