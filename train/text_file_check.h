// Files that are named or taken as text, and are something else.
#pragma once

#include <string>

namespace greyhound {

// Throws a runtime Error for a file that begins as token shards, models or compressed files do: tokens of their bytes
// would teach nothing.
void refuse_binary(const std::string& path);

// Throws a runtime Error for a .json file that begins as lines of JSON do, which are known by the names .jsonl and
// .ndjson: as text it would be learnt with braces and quotes.
void refuse_misnamed_json_lines(const std::string& path);

// The extension of the path in small letters: ".jsonl".
std::string lower_extension(const std::string& path);

}  // namespace greyhound
