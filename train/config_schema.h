// The table of all configuration keys: parsing, defaults, ranges, suggestions, to_yaml() and the check of
// configs/reference.yaml read it. A new key is a member of Config and a line here.
#pragma once

#include <greyhound/train/config.h>

#include <functional>
#include <limits>
#include <string>
#include <variant>
#include <vector>

namespace greyhound {

// What a value may be, both ends included unless open.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false, high_open = false;

  bool contains(double value) const {
    return (low_open ? value > low : value >= low) && (high_open ? value < high : value <= high);
  }
  std::string text() const;  // "at least 1", "from 0 to below 1"
};

using ConfigValue = std::variant<std::int64_t, double, bool, std::string>;

struct ConfigKey {
  std::string section, key;
  ConfigValue default_value;             // its alternative is the key's type
  Range range;                           // of numbers
  std::vector<std::string> choices;      // of text that is one of a few words; empty: any
  std::string meaning;                   // one line
  std::vector<std::string> other_names;  // what other programs call it, for suggestions
  bool free_on_resume = false;           // a run may go on with another value: it is the same run all the same
  std::function<void(Config&, const ConfigValue&)> set;
  std::function<ConfigValue(const Config&)> get;

  std::string name() const { return section + "." + key; }
};

// In the order of Config; the keys of a section are neighbours.
const std::vector<ConfigKey>& config_schema();

// nullptr when there is none.
const ConfigKey* find_config_key(const std::string& section, const std::string& key);
bool is_config_section(const std::string& section);

// "; did you mean optimizer.lr?" for what comes closest to the unknown name, "" or the section's keys when nothing
// does.
std::string suggest_key(const std::string& section, const std::string& key);
std::string suggest_section(const std::string& section);

// The value of `key` as written in YAML. `where` starts every message; throws a usage Error for a wrong type or a value
// out of range.
ConfigValue parse_value(const ConfigKey& key, const std::string& text, bool quoted, const std::string& where);
void check_range(const ConfigKey& key, const ConfigValue& value, const std::string& where);

// As it is written in YAML; numbers with the fewest digits that read back to the same bits.
std::string format_value(const ConfigValue& value, bool quote_text);

}  // namespace greyhound
