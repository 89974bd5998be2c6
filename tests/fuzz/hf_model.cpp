// A Hugging Face folder: config.json, a line "====", model.safetensors.
#include <greyhound/train/hf_model_folder.h>

#include <cstdio>
#include <filesystem>

#include "fuzz_input.h"

using namespace greyhound;

namespace {

struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / "greyhound-fuzz-XXXXXX").string();
  Folder() {
    if (::mkdtemp(path.data()) == nullptr) std::abort();
  }
  ~Folder() { std::filesystem::remove_all(path); }
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  static constexpr std::string_view line = "\n====\n";
  const std::string_view text = fuzzing::text_of(data, size);
  const std::size_t split = text.find(line);
  if (split == std::string_view::npos) return -1;
  const auto write = [](const std::string& path, std::string_view contents) {
    std::FILE* file = std::fopen(path.c_str(), "wb");
    if (file == nullptr || std::fwrite(contents.data(), 1, contents.size(), file) != contents.size()) std::abort();
    std::fclose(file);
  };
  write(folder.path + "/config.json", text.substr(0, split));
  write(folder.path + "/model.safetensors", text.substr(split + line.size()));
  fuzzing::expect_one_clear_line([&] {
    const ModelFile model = read_hf_model(folder.path);
    volatile unsigned sum = 0;
    for (const auto& [name, stored] : model.tensors) {
      const auto* bytes = static_cast<const unsigned char*>(stored.values.data);
      for (std::size_t i = 0; i < stored.values.bytes(); ++i) sum = sum + bytes[i];
    }
  });
  return 0;
}
