// Files of text to a stream of BPE tokens, on all cores.
#pragma once

#include <greyhound/train/tokenizer.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace greyhound {

struct TokenizeFilesOptions {
  double val_fraction = 0;      // of each file, from its end
  bool separate = true;         // an end-of-text token before every document, where the tokenizer has one
  bool special_tokens = false;  // special tokens written out in the text become tokens
  int threads = 0;              // 0: one a core
  Poll poll;                    // asked often, from any thread: what it throws ends the work
};

// A file whose name ends in .jsonl or .ndjson, whatever the case: lines of JSON, one document each.
bool is_json_lines(const std::string& path);

// The member `key`, a string, of the JSON object in `line`. Throws a runtime Error that begins with `where`.
std::string json_text(std::string_view line, const char* key, const std::string& where);

// Hands over the tokens of the files in their order, the same whatever the number of threads: sink(held out, tokens).
// A file of text is one document, or two when its end is held out, from a line's start on; lines of JSON hold one each,
// in `text`. Memory does not grow with the files, but for stretches of text without white space. `progress` is told the
// bytes that are done. What it or sink throws ends the work. Throws a runtime Error with file and line for what is not
// JSON, and with the file for one that is no text or that changes its size meanwhile.
void tokenize_files(const Tokenizer& tokenizer, const std::vector<std::string>& paths,
                    const TokenizeFilesOptions& options,
                    const std::function<void(bool held_out, std::span<const std::int32_t> tokens)>& sink,
                    const std::function<void(std::int64_t bytes)>& progress = {});

}  // namespace greyhound
