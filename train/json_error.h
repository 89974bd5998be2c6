// What nlohmann-json says of a mistake, as a part of a line that names the file.
#pragma once

#include <string>

namespace greyhound {

// Without the library's prefix "[json.exception.parse_error.101] parse error at line 1, column 13: "; what is left
// starts with the place: "column 13: ..." in the first line, "line 3, column 5: ..." in others.
inline std::string json_error_text(const std::string& what) {
  std::string text = what;
  if (text.rfind("[json.exception.", 0) == 0) {
    const std::size_t end = text.find("] ");
    if (end != std::string::npos) text.erase(0, end + 2);
  }
  for (const char* prefix : {"parse error at ", "parse error: ", "line 1, "}) {
    if (text.rfind(prefix, 0) == 0) text.erase(0, std::string(prefix).size());
  }
  return text;
}

}  // namespace greyhound
