// Any bytes: the tokens decode to them, and a text that is cut has the same tokens.
#include <greyhound/train/bpe_split.h>
#include <greyhound/train/tokenizer.h>

#include "fuzz_input.h"

using namespace greyhound;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Tokenizer tokenizer =
      Tokenizer::bpe(BpeVocabulary::load(GREYHOUND_SOURCE_DIR "/tests/train/data/bpe_tokenizer.json"));
  static BpeEncoder encoder(tokenizer.merges());
  const std::string_view text = fuzzing::text_of(data, size);
  std::vector<std::int32_t> whole, parts;
  encoder.encode(text, whole);
  if (tokenizer.decode(whole) != text) std::abort();
  for (std::size_t begin = 0; begin < size;) {
    const std::size_t end = bpe_cut(text, begin + 1);
    encoder.encode(text.substr(begin, end - begin), parts);
    begin = end;
  }
  if (parts != whole) std::abort();
  return 0;
}
