#include <greyhound/train/bpe_vocabulary.h>
#include <greyhound/train/tokenizer.h>

#include "fuzz_input.h"

using namespace greyhound;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzzing::InputFile file(data, size);
  fuzzing::expect_one_clear_line([&] { BpeVocabulary::parse_tokenizer_json(fuzzing::text_of(data, size), "input"); });
  fuzzing::expect_one_clear_line([&] {
    const Tokenizer tokenizer = Tokenizer::load(file.path());
    if (tokenizer.kind() != TokenizerKind::bpe) return;
    // What loads encodes, decodes, and is written as it was read.
    const std::string text = "The hound's naïve 漢字\n\n 12\xFF";
    if (tokenizer.decode(tokenizer.encode(text)) != text) std::abort();
    const std::string json = tokenizer.vocabulary()->to_tokenizer_json();
    if (BpeVocabulary::parse_tokenizer_json(json, "output").to_tokenizer_json() != json) std::abort();
  });
  return 0;
}
