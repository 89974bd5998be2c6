#define PCRE2_CODE_UNIT_WIDTH 8
#include <greyhound/core/error.h>
#include <greyhound/train/bpe_split.h>
#include <greyhound/train/utf8.h>
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace greyhound {
namespace {

enum CharClass : std::uint8_t { letter, number, space, other };

// Marks the matches of `pattern` in a string of all code points.
void mark_class(const char* pattern, CharClass mark, const std::string& all, const std::vector<char32_t>& symbols,
                std::vector<CharClass>& classes) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error,
                    &offset, nullptr),
      pcre2_code_free);
  if (!code) throw_runtime("PCRE2 does not compile ", pattern, ": error ", error);
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // faster; where there is no JIT, matching works all the same
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create_from_pattern(code.get(), nullptr), pcre2_match_data_free);
  std::size_t symbol = 0, position = 0;  // of the string, kept side by side
  for (std::size_t from = 0; from < all.size();) {
    const int found = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(all.data()), all.size(), from,
                                  from == 0 ? 0 : PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) return;
    if (found < 0) throw_runtime("PCRE2 does not match ", pattern, ": error ", found);
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    for (; position < range[1]; ++symbol) {
      if (position >= range[0]) classes[symbols[symbol]] = mark;
      position += static_cast<std::size_t>(read_utf8(std::string_view(all).substr(position)).bytes);
    }
    from = range[1];
  }
}

// The class of every code point: a megabyte, made once in some milliseconds.
std::vector<CharClass> make_classes() {
  std::vector<CharClass> classes(0x110000, other);
  std::vector<char32_t> symbols;
  std::string all;
  for (char32_t symbol = 0; symbol < 0x110000; ++symbol) {
    if (symbol >= 0xD800 && symbol < 0xE000) continue;  // surrogates are no characters
    symbols.push_back(symbol);
    append_utf8(all, symbol);
  }
  mark_class("\\p{L}+", letter, all, symbols, classes);
  mark_class("\\p{N}+", number, all, symbols, classes);
  // Unicode's White_Space, which is \s in the tokenizers of OpenAI and Hugging Face. PCRE2's \s has U+180E as well.
  mark_class("[\\p{Z}\\x{9}-\\x{d}\\x{85}]+", space, all, symbols, classes);
  return classes;
}

struct Char {
  CharClass kind;
  std::uint8_t bytes;
};

class Scanner {
 public:
  Scanner(const CharClass* classes, std::string_view text) : classes_(classes), text_(text) {}

  Char at(std::size_t i) const {
    const auto byte = static_cast<unsigned char>(text_[i]);
    if (byte < 0x80) return {classes_[byte], 1};
    const CodePoint symbol = read_utf8(text_.substr(i, 4));
    if (symbol.bytes == 0) return {other, 1};
    return {classes_[symbol.value], static_cast<std::uint8_t>(symbol.bytes)};
  }

  // The end of the run of `kind` that holds position i.
  std::size_t run_end(std::size_t i, CharClass kind) const {
    while (i < text_.size()) {
      const Char next = at(i);
      if (next.kind != kind) break;
      i += next.bytes;
    }
    return i;
  }

 private:
  const CharClass* classes_;
  std::string_view text_;
};

const CharClass* char_classes() {
  static const std::vector<CharClass> classes = make_classes();
  return classes.data();
}

// The length of 's, 't, 're, 've, 'm, 'll or 'd at the start of `text`, or 0.
std::size_t contraction(std::string_view text) {
  if (text.size() < 2) return 0;
  const char second = text[1], third = text.size() > 2 ? text[2] : '\0';
  if (second == 's' || second == 't' || second == 'm' || second == 'd') return 2;
  const bool three = ((second == 'r' || second == 'v') && third == 'e') || (second == 'l' && third == 'l');
  return three ? 3 : 0;
}

}  // namespace

std::size_t bpe_word_end(std::string_view text, std::size_t begin) {
  const Scanner scan(char_classes(), text);
  if (text[begin] == '\'') {
    const std::size_t length = contraction(text.substr(begin, 3));
    if (length > 0) return begin + length;
  }
  const Char first = scan.at(begin);
  const std::size_t second = begin + first.bytes;
  if (first.kind != space) return scan.run_end(second, first.kind);
  if (text[begin] == ' ' && second < text.size()) {
    const CharClass kind = scan.at(second).kind;
    if (kind != space) return scan.run_end(second, kind);
  }
  // White space: all of it at the end of the text, otherwise its last character is left to the next word.
  std::size_t last = begin, end = second;
  while (end < text.size()) {
    const Char next = scan.at(end);
    if (next.kind != space) return last == begin ? end : last;
    last = end;
    end += next.bytes;
  }
  return end;
}

std::size_t bpe_cut(std::string_view text, std::size_t from) {
  const Scanner scan(char_classes(), text);
  for (std::size_t i = std::max<std::size_t>(from, 1); i < text.size(); ++i) {
    const char byte = text[i];
    if (byte != ' ' && byte != '\n' && byte != '\r' && byte != '\t') continue;
    // The start of the character before: no valid sequence holds a byte that is not a continuation, but at its start.
    std::size_t start = i - 1;
    while (start > 0 && i - start < 4 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    const Char before = scan.at(start);
    if (start + before.bytes != i || before.kind != space) return i;
  }
  return text.size();
}

}  // namespace greyhound
