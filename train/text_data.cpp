#include <greyhound/core/error.h>
#include <greyhound/core/rng.h>
#include <greyhound/train/one_line.h>
#include <greyhound/train/text_data.h>
#include <greyhound/train/utf8.h>

#include <algorithm>
#include <utility>

namespace greyhound {
namespace {

constexpr std::int64_t stride = 512;  // characters per entry of the index: 1.5 % of ASCII's size in memory

// Calls visit(symbol, byte position) for every character of the file.
template <class Visit>
void for_each_symbol(const MappedFile& file, Visit&& visit) {
  const std::string_view text = file.text();
  for (std::size_t position = 0; position < text.size();) {
    const CodePoint symbol = read_utf8(text.substr(position, 4));
    if (symbol.bytes == 0) {
      const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(position), '\n');
      throw_runtime(file.path(), ": expected UTF-8, found the byte ", static_cast<int>(file.data()[position]),
                    " at byte ", position, " (line ", line, "); data.tokenizer: byte takes any file");
    }
    visit(symbol.value, position);
    position += static_cast<std::size_t>(symbol.bytes);
  }
}

std::string position_text(const TextRange& range, std::int64_t token) {
  return concat(range.file->path(), ", token ", token);
}

}  // namespace

TextFile::TextFile(const std::string& path, const Tokenizer& tokenizer) : file_(path), tokenizer_(tokenizer) {
  require(tokenizer.kind() == TokenizerKind::byte || tokenizer.kind() == TokenizerKind::character, path,
          ": is text, but the model was trained on token ids");
  if (file_.size() == 0) throw_runtime(path, ": expected text, found an empty file");
  tokens_ = static_cast<std::int64_t>(file_.size());
  if (tokenizer.kind() == TokenizerKind::byte) return;

  for (std::size_t symbol = 0; symbol < ascii_.size(); ++symbol) {
    ascii_[symbol] = tokenizer.token_of(static_cast<char32_t>(symbol));
  }
  tokens_ = 0;
  for_each_symbol(file_, [&](char32_t symbol, std::size_t position) {
    if (token_of(symbol) < 0) {
      std::string shown;
      append_utf8(shown, symbol);
      throw_runtime(path, ": the character '", one_line(shown), "' at byte ", position, " is not among the ",
                    tokenizer_.vocab_size(), " characters that the model knows");
    }
    if (tokens_ % stride == 0) starts_.push_back(position);
    ++tokens_;
  });
  file_.release();
}

void TextFile::read(std::int64_t first, std::span<std::int32_t> tokens) const {
  require(first >= 0 && first + static_cast<std::int64_t>(tokens.size()) <= tokens_, path(), ": tokens ", first, " to ",
          first + static_cast<std::int64_t>(tokens.size()), " of ", tokens_);
  const std::string_view text = file_.text();
  if (tokenizer_.kind() == TokenizerKind::byte) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<unsigned char>(text[static_cast<std::size_t>(first) + i]);
    }
    return;
  }
  std::size_t position = starts_[static_cast<std::size_t>(first / stride)];
  const auto next = [&] {
    const CodePoint symbol = read_utf8(text.substr(position, 4));
    position += static_cast<std::size_t>(std::max(symbol.bytes, 1));  // checked at the start, but files can change
    return symbol.value;
  };
  for (std::int64_t skip = first % stride; skip > 0; --skip) next();
  for (std::int32_t& token : tokens) token = token_of(next());
}

std::vector<char32_t> collect_symbols(const std::vector<std::string>& paths) {
  std::vector<bool> seen(0x110000);
  for (const std::string& path : paths) {
    const MappedFile file(path);
    for_each_symbol(file, [&](char32_t symbol, std::size_t) { seen[symbol] = true; });
  }
  std::vector<char32_t> symbols;
  for (std::size_t symbol = 0; symbol < seen.size(); ++symbol) {
    if (seen[symbol]) symbols.push_back(static_cast<char32_t>(symbol));
  }
  return symbols;
}

TextData::TextData(std::vector<TextRange> ranges, std::int64_t block_size, std::int64_t rows_per_step,
                   std::uint64_t seed)
    : ranges_(std::move(ranges)), block_size_(block_size), rows_per_step_(rows_per_step), seed_(seed) {
  for (const TextRange& range : ranges_) {
    shuffled_.add(text_windows(range.end - range.begin, block_size).count);
    sequential_.add(std::max<std::int64_t>(range.end - range.begin - 1, 0) / block_size);
  }
}

TextData::Place TextData::training_place(std::int64_t step, std::int64_t row) const {
  const std::int64_t number = step * rows_per_step_ + row;
  const std::int64_t epoch = number / windows();
  const std::uint64_t key = mix_key(seed_, static_cast<std::uint64_t>(epoch));
  const auto [part, window] = shuffled_[Permutation(windows(), key)[number % windows()]];
  const TextRange& range = ranges_[part];
  const std::uint64_t offsets =
      static_cast<std::uint64_t>(text_windows(range.end - range.begin, block_size_).max_offset) + 1;
  // 32 random bits suffice: the offset is below 2 T + 1.
  const std::uint64_t offset = Philox{key}(part, 0)[0] % offsets;
  return {&range, range.begin + static_cast<std::int64_t>(offset) + window * block_size_};
}

TextData::Place TextData::sequential_place(std::int64_t row) const {
  const auto [part, window] = sequential_[row];
  return {&ranges_[part], ranges_[part].begin + window * block_size_};
}

void TextData::training_row(std::int64_t step, std::int64_t row, std::span<std::int32_t> window) const {
  const Place place = training_place(step, row);
  place.range->file->read(place.first, window);
}

void TextData::sequential_row(std::int64_t row, std::span<std::int32_t> window) const {
  const Place place = sequential_place(row);
  place.range->file->read(place.first, window);
}

double TextData::epochs(std::int64_t steps) const {
  return static_cast<double>(steps) * static_cast<double>(rows_per_step_) / static_cast<double>(windows());
}

std::string TextData::training_position(std::int64_t step, std::int64_t row, std::int64_t index) const {
  const Place place = training_place(step, row);
  return position_text(*place.range, place.first + index);
}

std::string TextData::sequential_position(std::int64_t row, std::int64_t index) const {
  const Place place = sequential_place(row);
  return position_text(*place.range, place.first + index);
}

void TextData::check() const {
  for (const TextRange& range : ranges_) range.file->check();
}

void TextData::release() const {
  for (const TextRange& range : ranges_) range.file->release();
}

}  // namespace greyhound
