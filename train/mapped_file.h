// A file in memory, read-only, paged in by the operating system as it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace greyhound {

class MappedFile {
 public:
  MappedFile() = default;
  // Throws a runtime Error that names the path and the reason; only regular files are mapped.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::string& path() const { return path_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

  // Throws a runtime Error when the file has been cut short since: touching what is gone would end the program by a
  // signal. A file that was replaced by another of its name stays as it was.
  void check_size() const;

  // Gives the pages back to the operating system, which keeps them cached: the process does not grow with what it has
  // read. They come back at the next access.
  void release() const;

 private:
  std::string path_;
  std::uint64_t device_ = 0, inode_ = 0;  // which file the path named
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace greyhound
