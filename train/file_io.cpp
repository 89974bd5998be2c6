#include <greyhound/core/error.h>
#include <greyhound/train/file_io.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace greyhound {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw_runtime("cannot write ", path, ": ", what, ": ", std::strerror(errno));
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(path), name_(concat(path, ".", ::getpid(), ".tmp")) {
  descriptor_ = ::open(name_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail(path_, "open");
}

// Removes the file unless it was renamed in time.
AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!renamed_) ::unlink(name_.c_str());
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  constexpr std::size_t most = std::size_t{1} << 30;  // Linux writes less than 2^31 bytes at once
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, next, std::min(bytes, most));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path_, "write");
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::write_start(const void* data, std::size_t bytes) {
  if (::lseek(descriptor_, 0, SEEK_SET) < 0) fail(path_, "seek");
  write(data, bytes);
  if (::lseek(descriptor_, 0, SEEK_END) < 0) fail(path_, "seek");
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) fail(path_, "fsync");
  const int closed = ::close(descriptor_);
  descriptor_ = -1;
  if (closed != 0) fail(path_, "close");
  if (std::rename(name_.c_str(), path_.c_str()) != 0) fail(path_, "rename");
  renamed_ = true;
  // The new name lasts once the folder is synced as well. Some file systems cannot; the rename stands all the same.
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  const int handle = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (handle < 0) return;
  ::fsync(handle);
  ::close(handle);
}

void write_atomically(const std::string& path, const std::function<void(const ByteSink& sink)>& write) {
  AtomicFile file(path);
  write([&](const void* data, std::size_t bytes) { file.write(data, bytes); });
  file.commit();
}

void write_atomically(const std::string& path, const std::string& contents) {
  write_atomically(path, [&](const ByteSink& sink) { sink(contents.data(), contents.size()); });
}

}  // namespace greyhound
