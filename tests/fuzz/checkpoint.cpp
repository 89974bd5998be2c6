// The two JSON files of a checkpoint: the input is taken for either.
#include <greyhound/train/checkpoint.h>
#include <greyhound/train/file_io.h>

#include <filesystem>

#include "fuzz_input.h"

using namespace greyhound;

namespace {

struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / "greyhound-fuzz-XXXXXX").string();
  Folder() {
    if (::mkdtemp(path.data()) == nullptr) std::abort();
    for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
      write_atomically(path + "/" + name, std::string("{}"));
    }
  }
  ~Folder() { std::filesystem::remove_all(path); }
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  const std::string text(fuzzing::text_of(data, size));
  fuzzing::expect_one_clear_line([&] {
    const CheckpointInfo info = parse_checkpoint_info(text, "state.json");
    if (to_json(parse_checkpoint_info(to_json(info), "again")) != to_json(info)) std::abort();
  });
  std::FILE* manifest = std::fopen((folder.path + "/manifest.json").c_str(), "wb");
  if (manifest == nullptr || std::fwrite(text.data(), 1, text.size(), manifest) != text.size()) std::abort();
  std::fclose(manifest);
  fuzzing::expect_one_clear_line([&] { Checkpoint{folder.path}; });
  return 0;
}
