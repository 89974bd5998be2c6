#include <greyhound/core/error.h>
#include <greyhound/train/completion_data.h>
#include <greyhound/train/generate.h>
#include <greyhound/train/lines.h>
#include <greyhound/train/mapped_file.h>
#include <greyhound/train/tokenize_files.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>

namespace greyhound {
bool holds_completions(const std::string& path) {
  if (!is_json_lines(path)) return false;
  bool found = false;
  for_each_line(MappedFile(path).text(), [&](std::string_view line, std::size_t, std::int64_t) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    // One of the two is enough to tell what was meant; the reader then names what is missing.
    found = json.is_object() && (json.contains("prompt") || (json.contains("completion") && !json.contains("text")));
    return false;
  });
  return found;
}

void Completions::add(const std::string& path, const Tokenizer& tokenizer) {
  require(tokenizer.kind() == TokenizerKind::byte || tokenizer.kind() == TokenizerKind::bpe, path,
          ": prompts and completions take a BPE tokenizer or `byte` (data.tokenizer)");
  std::optional<BpeEncoder> encoder;
  if (tokenizer.kind() == TokenizerKind::bpe) encoder.emplace(tokenizer.merges());
  const auto encode = [&](const std::string& text) {
    if (encoder) {
      encoder->encode(text, tokens_);
    } else {
      const std::vector<std::int32_t> bytes = tokenizer.encode(text);
      tokens_.insert(tokens_.end(), bytes.begin(), bytes.end());
    }
  };
  const MappedFile file(path);
  for_each_line(file.text(), [&](std::string_view line, std::size_t, std::int64_t number) {
    const std::string where = concat(path, ": line ", number);
    const std::string prompt = json_text(line, "prompt", where), completion = json_text(line, "completion", where);
    Example example{};
    example.begin = static_cast<std::int64_t>(tokens_.size());
    if (prompt.empty()) {
      tokens_.push_back(encode_prompt(tokenizer, prompt).front());
    } else {
      encode(prompt);
    }
    example.completion = static_cast<std::int64_t>(tokens_.size());
    encode(completion);
    if (tokenizer.end_of_text() >= 0) tokens_.push_back(tokenizer.end_of_text());
    example.end = static_cast<std::int64_t>(tokens_.size());
    if (example.completion == example.end) throw_runtime(where, ": the completion is empty");
    examples_.push_back(example);
    return true;
  });
}

Completions Completions::split(std::size_t first) {
  Completions rest;
  if (first >= examples_.size()) return rest;
  const std::int64_t begin = examples_[first].begin;
  rest.tokens_.assign(tokens_.begin() + begin, tokens_.end());
  for (std::size_t i = first; i < examples_.size(); ++i) {
    const Example& example = examples_[i];
    rest.examples_.push_back({example.begin - begin, example.completion - begin, example.end - begin});
  }
  tokens_.resize(static_cast<std::size_t>(begin));
  examples_.resize(first);
  return rest;
}

void Completions::append(const Completions& other) {
  const auto begin = static_cast<std::int64_t>(tokens_.size());
  tokens_.insert(tokens_.end(), other.tokens_.begin(), other.tokens_.end());
  for (const Example& example : other.examples_) {
    examples_.push_back({example.begin + begin, example.completion + begin, example.end + begin});
  }
}

CompletionData::CompletionData(Completions completions, std::int64_t block_size, std::int64_t rows_per_step,
                               std::uint64_t seed)
    : completions_(std::move(completions)), rows_per_step_(rows_per_step), seed_(seed) {
  const std::int64_t room = block_size + 1;
  std::int64_t used = room;  // of the last row
  for (Completions::Example example : completions_.examples()) {
    if (example.completion - example.begin >= room) {
      ++left_out_;
      continue;
    }
    if (example.end - example.begin > room) {
      example.end = example.begin + room;
      ++cut_;
    }
    const std::int64_t length = example.end - example.begin;
    if (used + length > room) {
      rows_.push_back({kept_.size(), kept_.size()});
      used = 0;
    }
    used += length;
    kept_.push_back(example);
    rows_.back().last = kept_.size();
  }
  examples_ = static_cast<std::int64_t>(kept_.size());
}

const CompletionData::Row& CompletionData::training(std::int64_t step, std::int64_t row) const {
  const std::int64_t number = step * rows_per_step_ + row, rows = sequential_rows();
  const std::uint64_t key = mix_key(seed_, static_cast<std::uint64_t>(number / rows));
  return rows_[static_cast<std::size_t>(Permutation(rows, key)[number % rows])];
}

void CompletionData::fill(const Row& row, std::span<std::int32_t> window) const {
  auto next = window.begin();
  for (std::size_t i = row.first; i < row.last; ++i) {
    const std::int32_t* tokens = completions_.tokens().data();
    next = std::copy(tokens + kept_[i].begin, tokens + kept_[i].end, next);
  }
  std::fill(next, window.end(), 0);  // never learnt, and nothing before it sees it
}

std::int64_t CompletionData::mask(const Row& row, std::span<std::int32_t> targets) const {
  std::int64_t masked = 0;
  const auto ignore = [&](std::int64_t begin, std::int64_t end) {  // tokens of the window; targets are one behind
    for (std::int64_t i = std::max<std::int64_t>(begin, 1); i < end; ++i) {
      std::int32_t& target = targets[static_cast<std::size_t>(i - 1)];
      masked += target != ignored_target;
      target = ignored_target;
    }
  };
  std::int64_t position = 0;
  for (std::size_t i = row.first; i < row.last; ++i) {
    ignore(position, position + kept_[i].completion - kept_[i].begin);
    position += kept_[i].end - kept_[i].begin;
  }
  ignore(position, static_cast<std::int64_t>(targets.size()) + 1);
  return masked;
}

void CompletionData::training_row(std::int64_t step, std::int64_t row, std::span<std::int32_t> window) const {
  fill(training(step, row), window);
}
void CompletionData::sequential_row(std::int64_t row, std::span<std::int32_t> window) const {
  fill(rows_[static_cast<std::size_t>(row)], window);
}
std::int64_t CompletionData::mask_training_row(std::int64_t step, std::int64_t row,
                                               std::span<std::int32_t> targets) const {
  return mask(training(step, row), targets);
}
std::int64_t CompletionData::mask_sequential_row(std::int64_t row, std::span<std::int32_t> targets) const {
  return mask(rows_[static_cast<std::size_t>(row)], targets);
}

double CompletionData::epochs(std::int64_t steps) const {
  return static_cast<double>(steps) * static_cast<double>(rows_per_step_) / static_cast<double>(sequential_rows());
}

std::string CompletionData::training_position(std::int64_t step, std::int64_t row, std::int64_t index) const {
  return concat("example ", training(step, row).first, " and following, token ", index);
}
std::string CompletionData::sequential_position(std::int64_t row, std::int64_t index) const {
  return concat("example ", rows_[static_cast<std::size_t>(row)].first, " and following, token ", index);
}

}  // namespace greyhound
