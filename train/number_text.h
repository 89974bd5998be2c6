// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace greyhound {

// "1,234,567".
std::string with_commas(std::int64_t number);
// "1 row", "1,234 rows".
std::string counted(std::int64_t number, const std::string& noun);
// "950", "45.2k", "1.20M".
std::string short_number(double number);
// "8s", "2m 05s", "1h 02m".
std::string duration(double seconds);

}  // namespace greyhound
