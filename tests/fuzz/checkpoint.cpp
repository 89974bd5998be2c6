// The two JSON files of a checkpoint: the input is taken for either.
#include <greyhound/train/checkpoint.h>

#include "fuzz_input.h"

using namespace greyhound;

namespace {

struct CheckpointFiles : fuzzing::Folder {
  CheckpointFiles() {
    for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) write(name, "{}");
  }
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const CheckpointFiles folder;
  const std::string text(fuzzing::text_of(data, size));
  fuzzing::expect_one_clear_line([&] {
    const CheckpointInfo info = parse_checkpoint_info(text, "state.json");
    if (to_json(parse_checkpoint_info(to_json(info), "again")) != to_json(info)) std::abort();
  });
  folder.write("manifest.json", text);
  fuzzing::expect_one_clear_line([&] { Checkpoint{folder.path}; });
  return 0;
}
