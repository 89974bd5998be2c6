// What nlohmann-json holds or says of a mistake, as a part of a line that names the file.
#pragma once

#include <greyhound/train/one_line.h>

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

// The value, or its beginning when it is long. Lists and objects are named and not printed: they may nest deeper than a
// recursion can go.
template <class Json>
std::string json_shown(const Json& value) {
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  std::string text = one_line(value.dump(-1, ' ', true, Json::error_handler_t::replace));
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

}  // namespace greyhound
