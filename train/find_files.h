// The files that data.train and data.val name.
#pragma once

#include <string>
#include <vector>

namespace greyhound {

// `pattern` is a path or a glob; the files come sorted by name. Throws a usage Error when there is none, which names
// the command that makes the file when it is one that the project's scripts can get. `key` names the configuration's
// key, or "--data" of eval, or the command "tokenize".
std::vector<std::string> find_files(const std::string& key, const std::string& pattern);

}  // namespace greyhound
