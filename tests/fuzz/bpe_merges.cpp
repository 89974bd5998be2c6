// vocab.json, a line of equals signs, merges.txt.
#include <greyhound/train/bpe_vocabulary.h>

#include "fuzz_input.h"

using namespace greyhound;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzzing::text_of(data, size);
  const std::size_t border = text.find("\n====\n");
  if (border == text.npos) return 0;
  fuzzing::expect_one_clear_line([&] {
    BpeVocabulary::parse_vocab_and_merges(text.substr(0, border), "vocab", text.substr(border + 6), "merges");
  });
  return 0;
}
