// Prompts and completions: rows, and which targets are learnt.
#include <doctest/doctest.h>
#include <greyhound/train/completion_data.h>
#include <greyhound/train/loader.h>

#include "test_files.h"

#include <set>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

const Tokenizer& bpe() {
  static const Tokenizer made =
      Tokenizer::bpe(BpeVocabulary::load(GREYHOUND_SOURCE_DIR "/tests/train/data/bpe_tokenizer.json"));
  return made;
}

std::string line(const std::string& prompt, const std::string& completion) {
  return "{\"prompt\": \"" + prompt + "\", \"completion\": \"" + completion + "\"}\n";
}

Config make_config(const std::string& train) {
  Config config = default_config();
  config.model.block_size = 9;  // rows of 10 tokens
  config.train.micro_batch = 2;
  config.data.train = train;
  config.data.val_fraction = 0;
  return config;
}

RunData open(const Config& config) {
  return open_data(config, plan_batch(config.train.micro_batch, 0, config.model.block_size, 1), 0);
}

// Rows as text, and their targets with '.' for what is ignored.
std::string shown(const HostBatch& batch, std::int64_t row) {
  std::string text;
  for (int t = 0; t < 9; ++t) text += static_cast<char>(batch.tokens.row<std::int32_t>(row)[t]);
  text += '|';
  for (int t = 0; t < 9; ++t) {
    const std::int32_t target = batch.targets.row<std::int32_t>(row)[t];
    text += target == ignored_target ? '.' : static_cast<char>(target);
  }
  return text;
}

std::int64_t count_valid(const HostBatch& batch) {
  std::int64_t valid = 0;
  for (std::int64_t i = 0; i < batch.targets.elements(); ++i) valid += batch.targets.as<std::int32_t>()[i] >= 0;
  return valid;
}

}  // namespace

TEST_CASE("completions: whole examples share rows, prompts and padding are ignored") {
  const TemporaryFolder folder;
  // Of 3 + 2, 2 + 3 (fills the row), 4 + 4, 1 + 1 (fits), 2 + 1 tokens.
  const std::string path = write_file(folder / "a.jsonl", line("abc", "de") + "\n" + line("fg", "hij") +
                                                              line("klmn", "opqr") + line("s", "t") + line("uv", "w"));
  Completions completions;
  completions.add(path, Tokenizer::bytes());
  REQUIRE(completions.examples().size() == 5);
  const CompletionData data(completions, 9, 2, 1);
  REQUIRE(data.sequential_rows() == 3);
  CHECK(data.examples() == 5);
  CHECK(data.cut() == 0);
  CHECK(data.left_out() == 0);

  const auto source = std::make_shared<CompletionData>(completions, 9, 2, 1);
  Evaluator all(source, 0, 2, 3, 9, 0, 1, 256);
  const HostBatch batch = all.batch(0);
  REQUIRE(batch.rows == 3);
  CHECK(shown(batch, 0) == "abcdefghi|..de..hij");
  CHECK(shown(batch, 1) == "klmnopqrs|...opqr.t");
  CHECK(shown(batch, 2) == std::string("uvw\0\0\0\0\0\0|.w.......", 19));
  CHECK(batch.valid_targets == 5 + 5 + 1);
  CHECK(batch.valid_targets == count_valid(batch));
}

TEST_CASE("completions: training counts the targets that are left, and sees every row once an epoch") {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 8; ++i) lines += line(std::string(4, static_cast<char>('a' + i)), std::string(4 - i % 2, 'X'));
  RunData data = open(make_config(write_file(folder / "a.jsonl", lines)));
  CHECK(data.vocab_size == 256);
  CHECK(contains(data.description, "prompts and completions, 8 examples for training, 0 held out, 256 byte values"));
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::set<char> seen;
    for (int step = 0; step < 4; ++step) {
      const HostBatch batch = data.train->next();
      CHECK(batch.valid_targets == count_valid(batch));
      for (std::int64_t row = 0; row < 2; ++row) {
        const std::string text = shown(batch, row);
        CHECK(seen.insert(text[0]).second);
        const bool shorter = (text[0] - 'a') % 2 == 1;
        CHECK(text.substr(10) == (shorter ? "...XXX..." : "...XXXX.."));
        CHECK(batch.slice(row, 1).valid_targets == (shorter ? 3 : 4));
      }
    }
    CHECK(seen.size() == 8);
    CHECK(data.train->epoch() == epoch + 1);
  }
}

TEST_CASE("completions: with BPE, prompt and completion are encoded apart and end with end-of-text") {
  const TemporaryFolder folder;
  Completions completions;
  completions.add(write_file(folder / "a.jsonl", line("The hou", "nd runs") + line("", "over")), bpe());
  const std::vector<std::int32_t> prompt = bpe().encode("The hou"), completion = bpe().encode("nd runs");
  std::vector<std::int32_t> expected = prompt;
  expected.insert(expected.end(), completion.begin(), completion.end());
  expected.push_back(bpe().end_of_text());
  const auto first = completions.examples()[0], second = completions.examples()[1];
  CHECK(std::vector<std::int32_t>(completions.tokens().begin(), completions.tokens().begin() + first.end) == expected);
  CHECK(first.completion == static_cast<std::int64_t>(prompt.size()));
  // An empty prompt is what an empty text starts from.
  CHECK(second.completion - second.begin == 1);
  CHECK(completions.tokens()[static_cast<std::size_t>(second.begin)] == bpe().end_of_text());
}

TEST_CASE("completions: held out, cut, left out") {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 10; ++i) lines += line("ab", std::string(8, static_cast<char>('0' + i)));
  Config config = make_config(write_file(folder / "a.jsonl", lines));
  config.data.val_fraction = 0.3;
  RunData data = open(config);
  CHECK(contains(data.description, "7 examples for training, 3 held out"));
  REQUIRE(data.validation);
  CHECK(data.validation->total_rows() == 3);
  CHECK(shown(data.validation->batch(0), 0) == "ab7777777|.77777777");

  config.data.val_fraction = 0;
  config.data.train = write_file(folder / "b.jsonl", line("ab", "0123456789") + line("abcdefghij", "k") + lines);
  data = open(config);
  REQUIRE(data.warnings.size() == 3);
  CHECK(contains(data.warnings[0], "data.train: 1 of 11 examples is longer than a row of 10 tokens and is cut"));
  CHECK(contains(data.warnings[1], "data.train: 1 example is left out: its prompt fills a row of 10 tokens"));
  config.data.val = folder / "a.jsonl";
  CHECK(open(config).validation->total_rows() == 10);

  // The tokenizer of a run, for evaluation.
  config.model.vocab_size = 256;
  const RunData evaluation = open_evaluation(config, plan_batch(2, 0, 9, 1), folder / "a.jsonl", Tokenizer::bytes());
  CHECK(evaluation.validation->total_rows() == 10);
}

TEST_CASE("completions: what cannot be used is one clear line") {
  const TemporaryFolder folder;
  const std::string path = folder / "a.jsonl";
  const auto error = [&](const std::string& text) {
    write_file(path, text);
    return error_of([&] { open(make_config(path)); });
  };
  CHECK(contains(error(line("a", "b") + "\n{\"prompt\": \"a\"}"),
                 "1: " + path + ": line 3: expected an object with a str"));
  CHECK(contains(error(line("a", "b") + "{\"prompt\": 3, \"completion\": \"\"}"), ": line 2: expected an object with"));
  CHECK(contains(error(line("a", "b") + "{\"prompt\": "), ": line 2: expected a line of JSON"));
  CHECK(contains(error("{\"completion\": \"a\"}"), ": line 1: expected an object with a string \"prompt\""));
  CHECK(contains(error(line("a", "")), "1: " + path + ": line 1: the completion is empty"));
  CHECK(contains(error(line("0123456789", "a")), "2: data.train: no example fits into a row of 10 tokens"));
  CHECK(contains(error("{\"text\": \"a\"}"), "lines of JSON with a text are documents for a BPE tokenizer"));
  write_file(path, line("a", "b"));
  Config config = make_config(path);
  config.data.tokenizer = "char";
  CHECK(contains(error_of([&] { open(config); }), "2: data.tokenizer: char does not go with prompts and completions"));
  config = make_config(folder / "*");
  write_file(folder / "b.txt", "text");
  CHECK(contains(error_of([&] { open(config); }), "b.txt is text, but " + path + " is prompts and completions"));
}
