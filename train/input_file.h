// Regular files, read part by part: what is cut short meanwhile is an error, and not a signal as in mapped memory.
#pragma once

#include <cstdint>
#include <string>

namespace greyhound {

// Opens a regular file for reading. A pipe or a device is refused at once: it has no size, and may keep a reader
// waiting for ever. Throws a runtime Error that names the path. The caller closes the descriptor.
int open_regular_file(const std::string& path);

class InputFile {
 public:
  explicit InputFile(const std::string& path);
  InputFile(const InputFile&) = delete;
  ~InputFile();

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }  // when it was opened

  // The bytes [begin, end). Throws a runtime Error when they are not there any more. Threads may read at once.
  std::string read(std::uint64_t begin, std::uint64_t end) const;
  // Throws a runtime Error when the file has another size than when it was opened.
  void check_size() const;

 private:
  std::string path_;
  int descriptor_;
  std::uint64_t size_ = 0;
};

// All of a file that is expected to be small. Throws a runtime Error for one of more than `limit` bytes, before it
// reads.
std::string read_small_file(const std::string& path, std::uint64_t limit);

// An exclusive lock on a folder, which ends with the process: nothing is left of it after a crash.
class FolderLock {
 public:
  // Throws a runtime Error when another process holds the lock. Where the file system has no locks there is none.
  explicit FolderLock(const std::string& folder);
  FolderLock(const FolderLock&) = delete;
  ~FolderLock();

 private:
  int descriptor_;
};

}  // namespace greyhound
