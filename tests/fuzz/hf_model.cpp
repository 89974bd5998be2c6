// A Hugging Face folder: config.json, a line "====", model.safetensors.
#include <greyhound/train/hf_model_folder.h>

#include "fuzz_input.h"

using namespace greyhound;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzzing::Folder folder;
  static constexpr std::string_view line = "\n====\n";
  const std::string_view text = fuzzing::text_of(data, size);
  const std::size_t split = text.find(line);
  if (split == std::string_view::npos) return -1;
  folder.write("config.json", text.substr(0, split));
  folder.write("model.safetensors", text.substr(split + line.size()));
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
