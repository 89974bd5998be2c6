#include <greyhound/core/error.h>
#include <greyhound/train/input_file.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace greyhound {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

[[noreturn]] void size_changed(const std::string& path, std::uint64_t expected, std::uint64_t found) {
  throw_runtime(path, ": changed while it was read: expected ", expected, " bytes, found ", found);
}

}  // namespace

int open_regular_file(const std::string& path) {
  // O_NONBLOCK: opening a pipe waits for a writer otherwise. It means nothing to a regular file.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) throw_runtime("cannot open ", path, ": ", std::strerror(errno));
  struct stat status {};
  const int problem = ::fstat(descriptor, &status) != 0 ? errno : 0;
  if (problem == 0 && S_ISREG(status.st_mode)) return descriptor;
  ::close(descriptor);
  if (problem != 0) throw_runtime("cannot read ", path, ": ", std::strerror(problem));
  throw_runtime("cannot read ", path, ": expected a regular file, found ", kind_of(status.st_mode));
}

InputFile::InputFile(const std::string& path) : path_(path), descriptor_(open_regular_file(path)) {
  struct stat status {};
  if (::fstat(descriptor_, &status) == 0) size_ = static_cast<std::uint64_t>(status.st_size);
}

InputFile::~InputFile() { ::close(descriptor_); }

std::string InputFile::read(std::uint64_t begin, std::uint64_t end) const {
  constexpr std::size_t most = std::size_t{1} << 30;  // Linux reads less than 2^31 bytes at once
  std::string bytes(end - begin, '\0');
  for (std::size_t done = 0; done < bytes.size();) {
    const std::size_t count = std::min(bytes.size() - done, most);
    const ssize_t got = ::pread(descriptor_, bytes.data() + done, count, static_cast<off_t>(begin + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_runtime("cannot read ", path_, ": ", std::strerror(errno));
    if (got == 0) size_changed(path_, size_, begin + done);
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

void InputFile::check_size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) throw_runtime("cannot read ", path_, ": ", std::strerror(errno));
  const auto found = static_cast<std::uint64_t>(status.st_size);
  if (found != size_) size_changed(path_, size_, found);
}

std::string read_small_file(const std::string& path, std::uint64_t limit) {
  const InputFile file(path);
  if (file.size() > limit) throw_runtime(path, ": expected at most ", limit, " bytes, found ", file.size());
  return file.read(0, file.size());
}

FolderLock::FolderLock(const std::string& folder) {
  descriptor_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0) throw_runtime("cannot open ", folder, ": ", std::strerror(errno));
  int failed = 0;
  while ((failed = ::flock(descriptor_, LOCK_EX | LOCK_NB)) != 0 && errno == EINTR) {
  }
  if (failed == 0 || errno != EWOULDBLOCK) return;
  ::close(descriptor_);
  throw_runtime(folder, ": another greyhound is writing to this folder");
}

bool FolderLock::is_at(const std::string& folder) const {
  struct stat locked {};
  struct stat found {};
  return ::fstat(descriptor_, &locked) == 0 && ::stat(folder.c_str(), &found) == 0 && locked.st_dev == found.st_dev &&
         locked.st_ino == found.st_ino;
}

FolderLock::~FolderLock() { ::close(descriptor_); }

}  // namespace greyhound
