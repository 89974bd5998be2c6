#include <greyhound/train/number_text.h>

#include <spdlog/fmt/fmt.h>

#include <cmath>

namespace greyhound {

std::string with_commas(std::int64_t number) {
  std::string digits = std::to_string(number);
  const std::int64_t first = number < 0 ? 1 : 0;
  for (std::int64_t at = static_cast<std::int64_t>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  }
  return digits;
}

std::string counted(std::int64_t number, const std::string& noun) {
  return with_commas(number) + " " + noun + (number == 1 ? "" : "s");
}

std::string short_number(double number) {
  if (number < 999.5) return fmt::format("{:.0f}", number);
  if (number < 99950) return fmt::format("{:.1f}k", number / 1e3);
  if (number < 999500) return fmt::format("{:.0f}k", number / 1e3);
  return fmt::format("{:.2f}M", number / 1e6);
}

std::string duration(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  return fmt::format("{}h {:02}m", whole / 3600, whole / 60 % 60);
}

}  // namespace greyhound
