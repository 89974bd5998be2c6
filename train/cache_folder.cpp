#include <greyhound/train/cache_folder.h>

#include <greyhound/core/error.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace greyhound {

std::string cache_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string own = variable("GREYHOUND_CACHE"); !own.empty()) return own;
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/greyhound";
  const std::string home = variable("HOME");
  if (home.empty()) throw_runtime("no folder for what is kept between runs: set GREYHOUND_CACHE to one");
  return home + "/.cache/greyhound";
}

std::string make_cache_folder() {
  const std::string folder = cache_folder();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw_runtime("cannot make the folder ", folder, " (GREYHOUND_CACHE names another): ", error.message());
  return folder;
}

CacheLock::CacheLock(const std::string& path) {
  descriptor_ = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw_runtime("cannot write ", path, ": ", std::strerror(errno));
  while (::flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
  }
}

CacheLock::~CacheLock() { ::close(descriptor_); }

}  // namespace greyhound
