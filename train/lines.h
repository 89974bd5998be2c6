// The lines of a text, for files that hold one record on each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace greyhound {

// Calls visit(line, begin, number) for every line that is not blank, until it says false: where the line begins in the
// text, and its number from 1.
template <class Visit>
void for_each_line(std::string_view text, Visit&& visit) {
  std::int64_t number = 1;
  for (std::size_t begin = 0; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    if (line.find_first_not_of(" \t\r") != line.npos && !visit(line, begin, number)) return;
    begin = end + 1;
  }
}

}  // namespace greyhound
