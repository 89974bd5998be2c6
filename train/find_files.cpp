#include <greyhound/core/error.h>
#include <greyhound/train/find_files.h>

#include <glob.h>

#include <algorithm>
#include <filesystem>

namespace greyhound {
namespace {

// Data that the project's scripts make, at the paths where they put it.
struct KnownData {
  const char* path;
  const char* command;
};
constexpr KnownData known_data[] = {
    {"data/austen.txt", "scripts/get_data austen"},
    {"data/tinyshakespeare.txt", "scripts/get_data shakespeare"},
};

// What the key takes.
const char* expected_files(const std::string& key) {
  if (key == "tokenize") return "text, lines of JSON (.jsonl), or a glob of either";
  if (key.rfind("data.", 0) == 0) return "text, token shards (.bin), a glob of either, or `synthetic`";
  return "text, token shards (.bin), or a glob of either";
}

std::vector<std::string> expand(const std::string& pattern) {
  glob_t matches{};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), GLOB_NOSORT | GLOB_TILDE, nullptr, &matches) == 0) {
    paths.assign(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  }
  ::globfree(&matches);
  std::sort(paths.begin(), paths.end());  // byte by byte, whatever the locale
  return paths;
}

}  // namespace

std::vector<std::string> find_files(const std::string& key, const std::string& pattern) {
  std::error_code ignored;
  // A path that exists is taken as it stands, brackets and all.
  std::vector<std::string> paths =
      std::filesystem::exists(pattern, ignored) ? std::vector<std::string>{pattern} : expand(pattern);
  if (paths.empty()) {
    const std::string normal = std::filesystem::path(pattern).lexically_normal().string();
    for (const KnownData& known : known_data) {
      require(normal != known.path, key, ": ", pattern, " is missing; make it with: ", known.command);
    }
    throw_usage(key, ": no file matches ", pattern, " (in ", std::filesystem::current_path(ignored).string(),
                "): expected ", expected_files(key));
  }
  for (const std::string& path : paths) {
    require(!std::filesystem::is_directory(path, ignored), key, ": ", path, " is a folder; a glob such as ",
            (std::filesystem::path(path) / (key == "tokenize" ? "*.txt" : "*.bin")).string(), " names the files in it");
    // A pipe or a device has no size, and reading one may wait for ever.
    require(std::filesystem::is_regular_file(path, ignored), key, ": ", path, " is not a regular file");
  }
  return paths;
}

}  // namespace greyhound
