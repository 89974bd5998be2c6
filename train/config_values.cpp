// Values of configuration keys: from text, to text, and in range. Suggestions for names that are not keys.
#include <greyhound/core/error.h>
#include <greyhound/train/config_schema.h>
#include <greyhound/train/one_line.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <set>
#include <string_view>

namespace greyhound {
namespace {

std::string format_number(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return std::string(text, end);
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// What the key takes, in words: "a whole number", "one of fp32, bf16".
std::string expected(const ConfigKey& key) {
  if (!key.choices.empty()) return "one of " + join(key.choices);
  switch (key.default_value.index()) {
    case 0: return "a whole number";
    case 1: return "a number";
    case 2: return "true or false";
    default: return "text";
  }
}

// Digits with an optional sign, dot and exponent: what YAML calls a number. std::from_chars alone would take "inf" and
// refuse "+1".
template <class Number>
bool parse_number(std::string_view text, bool real, Number& number) {
  const bool plus = !text.empty() && text.front() == '+';
  if (plus) text.remove_prefix(1);
  const bool signed_twice = plus && !text.empty() && text.front() == '-';
  const std::string_view allowed = real ? "+-.eE0123456789" : "-0123456789";
  if (text.empty() || signed_twice || text.find_first_not_of(allowed) != std::string_view::npos) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Edits (insert, delete, replace, swap neighbours) that turn a into b, whatever the case of a's letters.
int edit_distance(const std::string& given, const std::string& b) {
  const std::string a = lower_case(given);
  const std::size_t width = b.size() + 1;
  std::vector<int> d((a.size() + 1) * width);
  for (std::size_t i = 0; i <= a.size(); ++i) d[i * width] = static_cast<int>(i);
  for (std::size_t j = 0; j <= b.size(); ++j) d[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      int& best = d[i * width + j];
      best = std::min({d[(i - 1) * width + j] + 1, d[i * width + j - 1] + 1,
                       d[(i - 1) * width + j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        best = std::min(best, d[(i - 2) * width + j - 2] + 1);
      }
    }
  }
  return d[a.size() * width + b.size()];
}

// Far enough from everything, a suggestion would only mislead.
bool is_close(int distance, const std::string& given) {
  return distance <= std::max<int>(2, static_cast<int>(given.size()) / 2);
}

}  // namespace

std::string Range::text() const {
  const bool has_low = std::isfinite(low), has_high = std::isfinite(high);
  if (has_low && has_high) {
    return concat("from ", low_open ? "above " : "", format_number(low), " to ", high_open ? "below " : "",
                  format_number(high));
  }
  if (has_low) return concat(low_open ? "above " : "at least ", format_number(low));
  if (has_high) return concat(high_open ? "below " : "at most ", format_number(high));
  return "any number";
}

ConfigValue parse_value(const ConfigKey& key, const std::string& text, bool quoted, const std::string& where) {
  const auto refuse = [&]() {
    throw_usage(where, ": ", key.name(), ": expected ", expected(key), ", got ", quoted ? "the text \"" : "",
                text.empty() && !quoted ? "''" : one_line(text), quoted ? "\"" : "");
  };
  ConfigValue value = key.default_value;
  if (std::int64_t* integer = std::get_if<std::int64_t>(&value)) {
    if (quoted || !parse_number(text, false, *integer)) refuse();
  } else if (double* real = std::get_if<double>(&value)) {
    if (quoted || !parse_number(text, true, *real)) refuse();
  } else if (bool* flag = std::get_if<bool>(&value)) {
    if (quoted || (text != "true" && text != "false")) refuse();
    *flag = text == "true";
  } else {
    if (!key.choices.empty() && std::find(key.choices.begin(), key.choices.end(), text) == key.choices.end()) refuse();
    // Names of files end at such a character, for the system: another file would be taken.
    require(text.find('\0') == std::string::npos || key.name() == "sample.prompt", where, ": ", key.name(),
            ": expected text without the character \\x00, got ", one_line(text));
    value = text;
  }
  check_range(key, value, where);
  return value;
}

void check_range(const ConfigKey& key, const ConfigValue& value, const std::string& where) {
  double number = 0;
  if (const std::int64_t* integer = std::get_if<std::int64_t>(&value)) {
    number = static_cast<double>(*integer);
  } else if (const double* real = std::get_if<double>(&value)) {
    number = *real;
  } else {
    if (const std::string* word = std::get_if<std::string>(&value); word && !key.choices.empty()) {
      require(std::find(key.choices.begin(), key.choices.end(), *word) != key.choices.end(), where, ": ", key.name(),
              ": expected ", expected(key));
    }
    return;
  }
  const std::string meaning = key.meaning.empty() ? "" : " (" + key.meaning + ")";
  require(key.range.contains(number), where, ": ", key.name(), ": expected ", expected(key), " ", key.range.text(),
          ", got ", format_value(value, false), meaning);
  if (!std::holds_alternative<double>(value)) return;
  // The device computes in fp32, where a number may become one that is out of range, or vanish.
  const double in_fp32 = static_cast<double>(static_cast<float>(number));
  require(key.range.contains(in_fp32) && (number == 0 || in_fp32 != 0), where, ": ", key.name(), ": expected ",
          expected(key), " ", key.range.text(), ", got ", format_value(value, false), ", which is ",
          format_number(in_fp32), " in single precision", meaning);
}

std::string format_value(const ConfigValue& value, bool quote_text) {
  if (const std::int64_t* integer = std::get_if<std::int64_t>(&value)) return std::to_string(*integer);
  if (const double* real = std::get_if<double>(&value)) return format_number(*real);
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  const std::string& text = std::get<std::string>(value);
  if (!quote_text) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += std::string("\\") + c;
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", byte);
      quoted += escape;
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string suggest_key(const std::string& section, const std::string& key) {
  const ConfigKey* nearest = nullptr;
  int nearest_distance = 0;
  for (const ConfigKey& candidate : config_schema()) {
    std::vector<std::string> names = candidate.other_names;
    names.push_back(candidate.key);
    for (const std::string& name : names) {
      // A key of the same section is preferred to one that is as near in another.
      const int distance = 2 * edit_distance(key, name) + (candidate.section == section ? 0 : 1);
      if (!nearest || distance < nearest_distance) {
        nearest = &candidate;
        nearest_distance = distance;
      }
    }
  }
  if (is_close(nearest_distance / 2, key)) return "; did you mean " + nearest->name() + "?";
  std::vector<std::string> keys;
  for (const ConfigKey& candidate : config_schema()) {
    if (candidate.section == section) keys.push_back(candidate.key);
  }
  return "; the keys of " + section + " are " + join(keys);
}

std::string suggest_section(const std::string& section) {
  std::vector<std::string> names;
  for (const ConfigKey& candidate : config_schema()) {
    if (names.empty() || names.back() != candidate.section) names.push_back(candidate.section);
  }
  // A key without its section is the likelier mistake when it is a key's exact name.
  for (const ConfigKey& candidate : config_schema()) {
    if (candidate.key == lower_case(section)) return "; did you mean " + candidate.name() + "?";
  }
  const auto nearest = std::min_element(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return edit_distance(section, a) < edit_distance(section, b);
  });
  if (is_close(edit_distance(section, *nearest), section)) return "; did you mean " + *nearest + "?";
  return "; the sections are " + join(names);
}

}  // namespace greyhound
