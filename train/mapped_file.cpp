#include <greyhound/core/error.h>
#include <greyhound/train/input_file.h>
#include <greyhound/train/mapped_file.h>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace greyhound {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int descriptor = open_regular_file(path);
  struct stat status {};
  int problem = ::fstat(descriptor, &status) != 0 ? errno : 0;
  void* address = nullptr;
  if (problem == 0 && status.st_size > 0) {  // an empty mapping is not allowed
    address = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_SHARED, descriptor, 0);
    if (address == MAP_FAILED) problem = errno;
  }
  ::close(descriptor);  // the mapping stays
  if (problem != 0) throw_runtime("cannot read ", path, ": ", std::strerror(problem));
  data_ = static_cast<const std::byte*>(address);
  size_ = static_cast<std::size_t>(status.st_size);
  device_ = status.st_dev;
  inode_ = status.st_ino;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  return *this;
}

void MappedFile::check_size() const {
  struct stat status {};
  if (data_ == nullptr || ::stat(path_.c_str(), &status) != 0) return;  // a deleted file stays mapped
  if (status.st_dev != device_ || status.st_ino != inode_) return;
  if (static_cast<std::size_t>(status.st_size) >= size_) return;
  throw_runtime(path_, ": was cut short while it was read: expected ", size_, " bytes, found ", status.st_size);
}

void MappedFile::release() const {
  if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

}  // namespace greyhound
