#include <greyhound/train/llmc_model_file.h>

#include "fuzz_input.h"

using namespace greyhound;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzzing::InputFile input(data, size);
  fuzzing::expect_one_clear_line([&] {
    const ModelFile model = read_llmc_model(input.path());
    volatile unsigned sum = 0;
    for (const auto& [name, stored] : model.tensors) {
      const auto* bytes = static_cast<const unsigned char*>(stored.values.data);
      for (std::size_t i = 0; i < stored.values.bytes(); ++i) sum = sum + bytes[i];
    }
  });
  return 0;
}
