// Generating text from a model, token by token.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/models/gpt.h>
#include <greyhound/train/sampling.h>
#include <greyhound/train/tokenizer.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace greyhound {

struct GenerationOptions {
  SamplingOptions sampling;
  std::int64_t tokens = 100;  // new ones, after the prompt
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;    // texts of one seed and different streams are unrelated
  std::function<bool()> stop;  // asked before each token; the text ends when it says yes
};

// Feeds the prompt (at least one token), then calls emit(token) for each new token. The model's buffers were planned
// with plan_generation. When block_size positions are full, the last half of them is fed again from position 0: the
// window slides, and any number of tokens can be drawn. Draws from a random stream of its own: training does not
// notice.
void generate(const Context& context, Gpt& model, std::span<const std::int32_t> prompt,
              const GenerationOptions& options, const std::function<void(std::int32_t)>& emit);

// The tokens of `text`; an empty text starts with a line end, or with the end-of-text token (token 0 where there is
// none) of BPE and of bare ids. Throws a usage Error when the vocabulary lacks a symbol of it.
std::vector<std::int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& text);

// The prompt and what follows it, piece by piece as soon as characters are whole: print(text).
void generate_text(const Context& context, Gpt& model, const Tokenizer& tokenizer, const std::string& prompt,
                   const GenerationOptions& options, const std::function<void(const std::string&)>& print);

}  // namespace greyhound
