// What people are shown is one line, whatever is in a file or a name.
#pragma once

#include <string>

namespace greyhound {

// Control characters become escapes such as \x0a.
inline std::string one_line(const std::string& text) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      line += c;
    } else {
      line += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    }
  }
  return line;
}

}  // namespace greyhound
