#include <greyhound/train/safetensors.h>

#include "fuzz_input.h"

using namespace greyhound;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzzing::InputFile input(data, size);
  fuzzing::expect_one_clear_line([&] {
    const SafetensorsFile file(input.path());
    volatile unsigned sum = 0;
    for (const std::string& name : file.names()) {
      fuzzing::expect_one_clear_line([&] {
        const ConstTensor tensor = file[name];
        const auto* bytes = static_cast<const unsigned char*>(tensor.data);
        for (std::size_t i = 0; i < tensor.bytes(); ++i) sum = sum + bytes[i];
      });
    }
  });
  return 0;
}
