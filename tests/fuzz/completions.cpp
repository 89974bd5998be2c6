// Lines of JSON with prompts and completions.
#include <greyhound/train/completion_data.h>

#include "fuzz_input.h"

using namespace greyhound;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzzing::InputFile file(data, size);
  fuzzing::expect_one_clear_line([&] {
    Completions completions;
    completions.add(file.path(), Tokenizer::bytes());
    const CompletionData rows(std::move(completions), 7, 2, 1);
    std::vector<std::int32_t> window(8);
    for (std::int64_t row = 0; row < rows.sequential_rows(); ++row) {
      rows.sequential_row(row, window);
      rows.mask_sequential_row(row, std::span(window).subspan(1));
    }
  });
  return 0;
}
