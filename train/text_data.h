// Text as training data: memory-mapped files, tokenized as they are read (bytes, characters) or before (BPE).
#pragma once

#include <greyhound/train/data_source.h>
#include <greyhound/train/mapped_file.h>
#include <greyhound/train/tokenizer.h>
#include <greyhound/train/window_order.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

namespace greyhound {

// Random access to the tokens of one file.
class TokenFile {
 public:
  virtual ~TokenFile() = default;
  virtual const std::string& path() const = 0;
  virtual std::int64_t tokens() const = 0;
  virtual void read(std::int64_t first, std::span<std::int32_t> tokens) const = 0;
  virtual void check() const = 0;    // throws a runtime Error when the file has been cut short
  virtual void release() const = 0;  // gives pages back
};

// Of a text, byte or character.
class TextFile final : public TokenFile {
 public:
  // Throws a runtime Error with the position of what is not UTF-8 or not among the tokenizer's characters, and for an
  // empty file.
  TextFile(const std::string& path, const Tokenizer& tokenizer);

  std::int64_t tokens() const override { return tokens_; }
  const std::string& path() const override { return file_.path(); }
  void read(std::int64_t first, std::span<std::int32_t> tokens) const override;
  void check() const override { file_.check_size(); }
  void release() const override { file_.release(); }

 private:
  std::int32_t token_of(char32_t symbol) const {
    return symbol < ascii_.size() ? ascii_[symbol] : tokenizer_.token_of(symbol);
  }

  MappedFile file_;
  Tokenizer tokenizer_;
  std::int64_t tokens_ = 0;
  // Characters have one to four bytes: where every stride-th one starts.
  std::vector<std::size_t> starts_;
  std::array<std::int32_t, 128> ascii_{};
};

// The characters of the files, ascending. Throws a runtime Error with file and position for what is not UTF-8.
std::vector<char32_t> collect_symbols(const std::vector<std::string>& paths);

// Tokens [begin, end) of a file.
struct TextRange {
  std::shared_ptr<const TokenFile> file;
  std::int64_t begin = 0, end = 0;
};

// Windows of one or more ranges. Training draws them in the order of window_order.h and goes from one epoch into the
// next within a step, so a step may be larger than the text.
class TextData final : public DataSource {
 public:
  TextData(std::vector<TextRange> ranges, std::int64_t block_size, std::int64_t rows_per_step, std::uint64_t seed);

  void training_row(std::int64_t step, std::int64_t row, std::span<std::int32_t> window) const override;
  void sequential_row(std::int64_t row, std::span<std::int32_t> window) const override;
  std::int64_t sequential_rows() const override { return sequential_.total(); }
  double epochs(std::int64_t steps) const override;
  std::string training_position(std::int64_t step, std::int64_t row, std::int64_t index) const override;
  std::string sequential_position(std::int64_t row, std::int64_t index) const override;
  void check() const override;
  void release() const override;

  std::int64_t windows() const { return shuffled_.total(); }  // of an epoch of training

 private:
  struct Place {
    const TextRange* range;
    std::int64_t first;  // token of the file
  };
  Place training_place(std::int64_t step, std::int64_t row) const;
  Place sequential_place(std::int64_t row) const;

  std::vector<TextRange> ranges_;
  std::int64_t block_size_, rows_per_step_;
  std::uint64_t seed_;
  PartIndex shuffled_, sequential_;
};

}  // namespace greyhound
