// Text in BPE tokens, made once and kept as token shards.
#pragma once

#include <greyhound/train/text_data.h>
#include <greyhound/train/tokenizer.h>

#include <memory>
#include <string>

namespace greyhound {

// The tokens of a text (or of documents in lines of JSON, see tokenize_files.h) in the cache folder, under the hash of
// its contents and of the tokenizer. Where they are missing they are made first, by one process while others wait.
// Throws a runtime Error for an empty file.
std::shared_ptr<const TokenFile> open_cached_tokens(const std::string& path, const Tokenizer& tokenizer);

}  // namespace greyhound
