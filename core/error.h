// The one exception type of Greyhound, and the checks that throw it.
#pragma once

#include <greyhound/core/export.h>

#include <sstream>
#include <stdexcept>
#include <string>

namespace greyhound {

// What kind of mistake an Error reports. A program turns it into its exit code.
enum class ErrorKind {
  usage,    // the caller or the configuration asked for something impossible (exit code 2)
  runtime,  // the machine, a file or a library failed (exit code 1)
};

// Carries one line: what was expected, what was given, and where.
class GREYHOUND_API Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;
  ~Error() override;
  ErrorKind kind() const noexcept { return kind_; }
  int exit_code() const noexcept { return kind_ == ErrorKind::usage ? 2 : 1; }

 private:
  ErrorKind kind_;
};

// The parts, printed one after the other: concat("row ", 3) == "row 3".
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

template <class... Parts>
[[noreturn]] void throw_usage(const Parts&... parts) {
  throw Error(ErrorKind::usage, concat(parts...));
}

template <class... Parts>
[[noreturn]] void throw_runtime(const Parts&... parts) {
  throw Error(ErrorKind::runtime, concat(parts...));
}

// Throws a usage error made of `parts` unless `condition` holds. The parts are only printed on failure.
template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) throw_usage(parts...);
}

}  // namespace greyhound
