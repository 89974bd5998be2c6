// How GPT-2's tokenizers split text into the words that BPE works on.
#pragma once

#include <cstddef>
#include <string_view>

namespace greyhound {

// The words are the matches of
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// which this scans by hand, an order of magnitude faster than a regular expression; Unicode's classes are PCRE2's. A
// byte that is not part of valid UTF-8 splits as U+FFFD does, which programs that hold text in Unicode put in its
// place. Returns the end of the word that starts at `begin` < text.size().
std::size_t bpe_word_end(std::string_view text, std::size_t begin);

// A place to cut a text in two that have the same words as the whole: the first such byte position at or after `from`,
// where a white space follows something else; text.size() when there is none.
std::size_t bpe_cut(std::string_view text, std::size_t from);

}  // namespace greyhound
