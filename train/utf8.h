// UTF-8, as far as tokenizers need it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace greyhound {

struct CodePoint {
  char32_t value = 0;
  int bytes = 0;           // 0: not UTF-8
  bool truncated = false;  // not UTF-8 yet: more bytes could complete it
};

// The code point at the start of `text`: no overlong forms, no surrogates, at most U+10FFFF.
inline CodePoint read_utf8(std::string_view text) {
  if (text.empty()) return {0, 0, true};
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1, false};
  const int length = lead >= 0xC2 && lead <= 0xDF   ? 2
                     : (lead & 0xF0) == 0xE0        ? 3
                     : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                    : 0;
  if (length == 0) return {};
  // The second byte's range excludes overlong forms, surrogates and what is beyond U+10FFFF.
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  char32_t value = lead & (0x7F >> length);
  for (int i = 1; i < length; ++i) {
    if (static_cast<std::size_t>(i) >= text.size()) return {0, 0, true};
    if (byte(i) < (i == 1 ? low : 0x80) || byte(i) > (i == 1 ? high : 0xBF)) return {};
    value = value << 6 | (byte(i) & 0x3F);
  }
  return {value, length, false};
}

inline void append_utf8(std::string& text, char32_t symbol) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (symbol < 0x80) {
    put(symbol);
  } else if (symbol < 0x800) {
    put(0xC0 | symbol >> 6), put(0x80 | (symbol & 0x3F));
  } else if (symbol < 0x10000) {
    put(0xE0 | symbol >> 12), put(0x80 | (symbol >> 6 & 0x3F)), put(0x80 | (symbol & 0x3F));
  } else {
    put(0xF0 | symbol >> 18), put(0x80 | (symbol >> 12 & 0x3F)), put(0x80 | (symbol >> 6 & 0x3F));
    put(0x80 | (symbol & 0x3F));
  }
}

}  // namespace greyhound
