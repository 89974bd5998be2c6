#include <greyhound/train/generate.h>

#include <greyhound/core/memory.h>
#include <greyhound/core/rng.h>

#include <algorithm>

namespace greyhound {

namespace {

constexpr std::uint64_t sampling_stream = 0x73616d706c65;  // "sample"

// A number in [0, 1) with 53 random bits.
double uniform53(const Philox::Block& words) {
  const std::uint64_t bits = (static_cast<std::uint64_t>(words[0]) << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace

void generate(const Context& context, Gpt& model, std::span<const std::int32_t> prompt,
              const GenerationOptions& options, const std::function<void(std::int32_t)>& emit) {
  require(!prompt.empty(), "generate: expected a prompt of at least one token");
  const std::int64_t block_size = model.config().block_size;
  const Philox philox{mix_key(options.seed, sampling_stream)};

  std::vector<std::int32_t> text(prompt.begin(), prompt.end());
  std::vector<float> logits(static_cast<std::size_t>(model.config().vocab_size));
  // The window: text[begin, text.size()); its tokens up to `fed` are in the key-value cache.
  std::size_t begin = text.size() - std::min<std::size_t>(text.size(), static_cast<std::size_t>(block_size));
  std::size_t fed = begin;
  for (std::int64_t drawn = 0; drawn < options.tokens && !(options.stop && options.stop()); ++drawn) {
    if (text.size() - begin > static_cast<std::size_t>(block_size)) {
      begin = fed = text.size() - static_cast<std::size_t>(std::max<std::int64_t>(1, block_size / 2));
    }
    ConstTensor next;
    for (; fed < text.size(); ++fed) next = model.decode(context, text[fed], static_cast<std::int64_t>(fed - begin));
    copy_bytes(context, logits.data(), Device::cpu(), next.data, next.device, logits.size() * sizeof(float));
    context.synchronize();
    const double uniform = uniform53(philox(static_cast<std::uint64_t>(drawn), options.stream));
    text.push_back(sample_token(logits, options.sampling, uniform));
    emit(text.back());
  }
}

std::vector<std::int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::int32_t> tokens = tokenizer.encode(text);
  if (!tokens.empty()) return tokens;
  switch (tokenizer.kind()) {
    case TokenizerKind::byte: return {'\n'};
    case TokenizerKind::character: return {std::max(0, tokenizer.token_of(U'\n'))};
    case TokenizerKind::bpe:
    case TokenizerKind::ids: break;
  }
  return {std::max(0, tokenizer.end_of_text())};
}

void generate_text(const Context& context, Gpt& model, const Tokenizer& tokenizer, const std::string& prompt,
                   const GenerationOptions& options, const std::function<void(const std::string&)>& print) {
  const std::vector<std::int32_t> tokens = encode_prompt(tokenizer, prompt);
  StreamDecoder decoder(tokenizer);
  // The prompt goes through the decoder too: it may end in the middle of a character.
  if (!prompt.empty()) {
    for (const std::int32_t token : tokens) print(decoder.push(token));
  }
  generate(context, model, tokens, options, [&](std::int32_t token) { print(decoder.push(token)); });
  print(decoder.finish());
}

}  // namespace greyhound
