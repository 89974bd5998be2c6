// Prompts and completions as training data: the model reads the prompts and learns the completions.
#pragma once

#include <greyhound/train/data_source.h>
#include <greyhound/train/tokenizer.h>
#include <greyhound/train/window_order.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace greyhound {

// Does the file hold lines of JSON whose first has a prompt or a completion? False for files that cannot be read.
bool holds_completions(const std::string& path);

// Examples one after the other: the prompt's tokens (encoded alone, as `sample` does), the completion's, and
// end-of-text.
class Completions {
 public:
  struct Example {
    std::int64_t begin, completion, end;  // of tokens()
  };
  // Throws a runtime Error with file and line for what is no JSON object with the strings `prompt` and `completion`. A
  // BPE tokenizer or bytes.
  void add(const std::string& path, const Tokenizer& tokenizer);
  // Moves the last examples [first, size()) to another.
  Completions split(std::size_t first);
  void append(const Completions& other);

  const std::vector<Example>& examples() const { return examples_; }
  const std::vector<std::int32_t>& tokens() const { return tokens_; }

 private:
  std::vector<std::int32_t> tokens_;
  std::vector<Example> examples_;
};

// Rows hold whole examples, as many of the following ones as fit, and padding. What is longer than a row is cut at its
// end; an example whose prompt leaves no room for the completion is left out. Training goes through the rows in another
// random order in each epoch. All in memory: 4 bytes a token.
class CompletionData final : public DataSource {
 public:
  CompletionData(Completions completions, std::int64_t block_size, std::int64_t rows_per_step, std::uint64_t seed);

  void training_row(std::int64_t step, std::int64_t row, std::span<std::int32_t> window) const override;
  void sequential_row(std::int64_t row, std::span<std::int32_t> window) const override;
  std::int64_t sequential_rows() const override { return static_cast<std::int64_t>(rows_.size()); }
  std::int64_t mask_training_row(std::int64_t step, std::int64_t row, std::span<std::int32_t> targets) const override;
  std::int64_t mask_sequential_row(std::int64_t row, std::span<std::int32_t> targets) const override;
  double epochs(std::int64_t steps) const override;
  std::string training_position(std::int64_t step, std::int64_t row, std::int64_t index) const override;
  std::string sequential_position(std::int64_t row, std::int64_t index) const override;

  std::int64_t examples() const { return examples_; }  // in the rows
  std::int64_t cut() const { return cut_; }
  std::int64_t left_out() const { return left_out_; }

 private:
  struct Row {
    std::size_t first, last;  // examples
  };
  const Row& training(std::int64_t step, std::int64_t row) const;
  void fill(const Row& row, std::span<std::int32_t> window) const;
  std::int64_t mask(const Row& row, std::span<std::int32_t> targets) const;

  Completions completions_;
  std::int64_t rows_per_step_;
  std::uint64_t seed_;
  std::vector<Completions::Example> kept_;
  std::vector<Row> rows_;
  std::int64_t examples_ = 0, cut_ = 0, left_out_ = 0;
};

}  // namespace greyhound
