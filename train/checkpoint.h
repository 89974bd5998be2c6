// A checkpoint: everything that a run must restore, as files in a folder of their own.
//   model.safetensors      the weights in fp32, as in the run's folder
//   optimizer.safetensors  AdamW's moments "optimizer.m.<parameter>", "optimizer.v.<parameter>" in fp32, and its t
//   state.json             what people and programs read: step, configuration, data, counters
//   manifest.json          size and checksum of each of them, written last
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/state.h>
#include <greyhound/models/parameters.h>
#include <greyhound/train/data_files.h>
#include <greyhound/train/state_snapshot.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace greyhound {

// state.json: whose state it is, and what of it is no tensor.
struct CheckpointInfo {
  std::int64_t step = 0;                                    // steps finished
  std::int64_t tokens = 0;                                  // trained on
  std::int64_t batch_tokens = 0;                            // of a step over all ranks
  std::int64_t ranks = 1;                                   // that made it
  std::vector<std::pair<std::string, std::string>> config;  // every key ("model.n_layer") and its value as JSON
  std::vector<DataFile> data;
  std::string tokenizer;  // its hash
  std::map<std::string, StateValue> values;
};

// As it stands in state.json. The reader throws a runtime Error that begins with `name` for anything else.
std::string to_json(const CheckpointInfo& info);
CheckpointInfo parse_checkpoint_info(const std::string& text, const std::string& name);

// Writes the files into `folder`, which exists and is empty, and makes them last (fsync). tensors: of a snapshot.
// Throws a runtime Error that names the file.
void write_checkpoint(const std::string& folder, const CheckpointInfo& info, const ParameterList& parameters,
                      const std::map<std::string, Tensor>& tensors);

class Checkpoint {
 public:
  // Reads manifest and state, and compares every file with its size and checksum. Throws a runtime Error that says what
  // is missing or damaged.
  explicit Checkpoint(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const CheckpointInfo& info() const { return info_; }

  // Puts everything back. Throws a runtime Error that names the file when something is missing, unknown or of another
  // shape.
  void restore(const Context& context, const ParameterList& parameters, Stateful& state) const;

 private:
  std::string folder_;
  CheckpointInfo info_;
};

}  // namespace greyhound
