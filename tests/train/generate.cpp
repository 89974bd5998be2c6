#include "test_files.h"
#include "toy_run.h"

#include <doctest/doctest.h>
#include <greyhound/train/generate.h>

#include <cmath>
#include <limits>
#include <numeric>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

bool is_utf8(const std::string& text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
    if (length == 0 || i + length > text.size()) return false;
    for (std::size_t k = 1; k < length; ++k) {
      if ((static_cast<unsigned char>(text[i + k]) & 0xc0) != 0x80) return false;
    }
    i += length;
  }
  return true;
}

// A byte model on text, block_size 64.
Config byte_config(const TemporaryFolder& folder) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += "Dashwood — £300 ";
  return toy({"data.train=" + write_file(folder / "text.txt", text), "data.val=", "model.vocab_size=0",
              "model.block_size=64", "train.batch_tokens=128", "sample.prompt=D"});
}

}  // namespace

TEST_CASE("sampling: temperature 0 takes the largest logit, the lowest index on ties") {
  const std::vector<float> logits = {0, 3, -1, 3, 2};
  for (const double uniform : {0.0, 0.5, 0.999999}) CHECK(sample_token(logits, {0, 0}, uniform) == 1);
}

TEST_CASE("sampling: top_k leaves k tokens, whatever the ties") {
  const std::vector<float> logits = {1, 2, 2, 2, 0};
  for (int i = 0; i < 100; ++i) {
    CHECK(sample_token(logits, {1, 1}, i / 100.0) == 1);
    const std::int32_t token = sample_token(logits, {1, 2}, i / 100.0);
    CHECK((token == 1 || token == 2));
  }
}

TEST_CASE("sampling: tokens come with their probabilities") {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.2f), -infinity, std::log(0.7f)};
  const auto counts = [&](const SamplingOptions& options) {
    std::vector<int> count(4);
    for (int i = 0; i < 10000; ++i) ++count[static_cast<std::size_t>(sample_token(logits, options, (i + 0.5) / 10000))];
    return count;
  };
  const std::vector<int> plain = counts({1, 0});
  CHECK(plain[0] == doctest::Approx(1000).epsilon(0.002));
  CHECK(plain[1] == doctest::Approx(2000).epsilon(0.002));
  CHECK(plain[2] == 0);
  // Temperature 1/2 squares the probabilities: 0.01, 0.04, 0.49 of 0.54.
  CHECK(counts({0.5, 0})[3] == doctest::Approx(10000 * 0.49 / 0.54).epsilon(0.002));
  CHECK(counts({1, 2})[3] == doctest::Approx(10000 * 0.7 / 0.9).epsilon(0.002));
}

TEST_CASE("sampling: large logits do not overflow, NaN is never drawn, nothing finite is an error") {
  CHECK(sample_token(std::vector<float>{3e38f, -3e38f}, {1e-3, 0}, 0.5) == 0);
  CHECK(sample_token(std::vector<float>{std::nanf(""), 1, infinity}, {1, 0}, 0.99) == 1);
  CHECK(contains(error_of([] { sample_token(std::vector<float>{std::nanf(""), -infinity}, {1, 0}, 0.5); }), "1: "));
}

TEST_CASE_ON_EACH_BACKEND("generation: 200 tokens from a model of 64 positions, whole characters only") {
  const TemporaryFolder folder;
  ToyRun run(byte_config(folder));
  GenerationOptions options;
  options.tokens = 200;
  options.seed = 5;
  const auto text_of = [&](const std::string& prompt) {
    std::string text;
    generate_text(run.context, run.buffers.model, run.data.tokenizer, prompt, options, [&](const std::string& piece) {
      CHECK(is_utf8(piece));  // an untrained model draws any byte
      text += piece;
    });
    return text;
  };
  const std::string text = text_of("Mr. ");
  CHECK(text.substr(0, 4) == "Mr. ");
  CHECK(text.size() >= 204);
  CHECK(text_of("Mr. ") == text);
  options.stream = 1;
  CHECK(text_of("Mr. ") != text);
  CHECK(text_of(std::string(500, 'a')).size() >= 700);  // a prompt longer than the window
  CHECK(text_of("").size() >= 200);
}

TEST_CASE("generation: ends when it is told to stop") {
  ToyRun run(toy());
  int drawn = 0;
  GenerationOptions options;
  options.tokens = 1 << 30;
  options.stop = [&] { return drawn == 3; };
  generate(run.context, run.buffers.model, std::vector<std::int32_t>{1}, options, [&](std::int32_t) { ++drawn; });
  CHECK(drawn == 3);
}

TEST_CASE_ON_EACH_BACKEND("generation: a window that slides sees the last half of the positions") {
  // After the slide the cache holds what the last 32 tokens alone would give: the same draw follows from them.
  const TemporaryFolder folder;
  ToyRun run(byte_config(folder));
  std::vector<std::int32_t> prompt(64);
  std::iota(prompt.begin(), prompt.end(), 40);
  const auto generated = [&](std::span<const std::int32_t> from, std::int64_t tokens) {
    std::vector<std::int32_t> drawn;
    GenerationOptions options;
    options.tokens = tokens;
    options.sampling.temperature = 0;
    generate(run.context, run.buffers.model, from, options, [&](std::int32_t token) { drawn.push_back(token); });
    return drawn;
  };
  const std::vector<std::int32_t> two = generated(prompt, 2);
  std::vector<std::int32_t> tail(prompt.end() - 31, prompt.end());
  tail.push_back(two[0]);
  CHECK(generated(tail, 1)[0] == two[1]);
}

TEST_CASE("generation: prompts") {
  CHECK(encode_prompt(Tokenizer::bytes(), "ab") == std::vector<std::int32_t>{'a', 'b'});
  CHECK(encode_prompt(Tokenizer::bytes(), "") == std::vector<std::int32_t>{'\n'});
  CHECK(encode_prompt(Tokenizer::characters({U'a', U'b'}), "") == std::vector<std::int32_t>{0});
  CHECK(encode_prompt(Tokenizer::ids(50257), "") == std::vector<std::int32_t>{50256});
  CHECK(encode_prompt(Tokenizer::ids(100), " \n") == std::vector<std::int32_t>{0});
  CHECK(contains(error_of([] { encode_prompt(Tokenizer::characters({U'a'}), "x"); }), "2: "));
}
