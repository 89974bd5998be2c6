#include <greyhound/train/config.h>

#include "fuzz_input.h"

using namespace greyhound;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzzing::expect_one_clear_line([&] {
    const Config config = parse_config(std::string(fuzzing::text_of(data, size)), "input");
    const std::string yaml = to_yaml(config);
    if (to_yaml(parse_config(yaml, "output")) != yaml) std::abort();
  });
  return 0;
}
