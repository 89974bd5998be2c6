// Reads the YAML of a configuration, two levels deep, into a list of entries that know where they stand.
#pragma once

#include <string>
#include <vector>

namespace greyhound {

struct YamlEntry {
  std::string section, key;
  std::string text;                             // the scalar as written, without quotes
  bool quoted = false;                          // quoted scalars are text, whatever they look like
  std::string where, key_where, section_where;  // of the value, the key and the section: "run.yaml:3:5"
};

// Throws a usage Error, "NAME:LINE:COLUMN: ...", for bad YAML, for anything but `section:` with `key: scalar` below it,
// and for duplicate sections and keys.
std::vector<YamlEntry> read_yaml(const std::string& text, const std::string& name);

// One scalar, such as the value of an override. Throws a usage Error that starts with `where`.
YamlEntry read_yaml_scalar(const std::string& text, const std::string& where);

}  // namespace greyhound
