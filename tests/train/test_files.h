// Files for tests of the trainer, in a folder that goes when the test ends.
#pragma once

#include <greyhound/core/error.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace greyhound::testing {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "greyhound-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw_runtime("cannot make ", name);
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// Sets a variable of the environment, or takes it away (nullptr), while it exists.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value);
  }
  Variable(const char* name, const std::string& value) : Variable(name, value.c_str()) {}
  Variable(const Variable&) = delete;
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }

 private:
  void set(const char* value) const { value != nullptr ? ::setenv(name_, value, 1) : ::unsetenv(name_); }

  const char* name_;
  std::optional<std::string> before_;
};

inline std::string write_file(const std::string& path, const std::string& contents) {
  std::ofstream file(path, std::ios::binary);
  file.write(contents.data(), static_cast<std::streamsize>(contents.size()));
  file.close();
  if (!file) throw_runtime("cannot write ", path);
  return path;
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// JSON that nests deeper than a recursion can go.
inline std::string deep_list() { return std::string(300000, '[') + std::string(300000, ']'); }

// The bytes of a shard of the llm.c family; Id: uint16_t or uint32_t.
template <class Id>
std::string shard_bytes(const std::vector<Id>& ids) {
  std::int32_t header[256] = {sizeof(Id) == 2 ? 20240520 : 20240801, sizeof(Id) == 2 ? 1 : 7,
                              static_cast<std::int32_t>(ids.size())};
  std::string bytes(sizeof header + ids.size() * sizeof(Id), '\0');
  std::memcpy(bytes.data(), header, sizeof header);
  if (!ids.empty()) std::memcpy(bytes.data() + sizeof header, ids.data(), ids.size() * sizeof(Id));
  return bytes;
}

// A shard whose token i is first + i, so that every token says where it comes from.
inline std::string counting_shard(std::int64_t tokens, std::int64_t first = 0) {
  std::vector<std::uint32_t> ids;
  for (std::int64_t i = 0; i < tokens; ++i) ids.push_back(static_cast<std::uint32_t>(first + i));
  return shard_bytes(ids);
}

// The message and exit code of the Error that `function` must throw, in one line: "2: ...".
template <class Function>
std::string error_of(Function&& function) {
  try {
    function();
  } catch (const Error& error) {
    const std::string message = error.what();
    return std::to_string(error.exit_code()) + ": " +
           (message.find('\n') == std::string::npos ? message : "SEVERAL LINES " + message);
  }
  return "no error";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace greyhound::testing
