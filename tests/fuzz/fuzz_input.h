// What the fuzz targets share: bytes as a file, and the only way in which a reader may complain.
#pragma once

#include <greyhound/core/error.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace greyhound::fuzzing {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// A file in memory; its path is good while the object lives.
class InputFile {
 public:
  InputFile(const std::uint8_t* data, std::size_t size) : descriptor_(::memfd_create("input", MFD_CLOEXEC)) {
    if (descriptor_ < 0 || ::write(descriptor_, data, size) != static_cast<ssize_t>(size)) std::abort();
  }
  InputFile(const InputFile&) = delete;
  ~InputFile() { ::close(descriptor_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

// A folder that goes when the program ends.
struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / "greyhound-fuzz-XXXXXX").string();
  Folder() {
    if (::mkdtemp(path.data()) == nullptr) std::abort();
  }
  ~Folder() { std::filesystem::remove_all(path); }

  void write(const std::string& name, std::string_view contents) const {
    std::FILE* file = std::fopen((path + "/" + name).c_str(), "wb");
    if (file == nullptr || std::fwrite(contents.data(), 1, contents.size(), file) != contents.size()) std::abort();
    std::fclose(file);
  }
};

// An Error of one line is a right answer to a malformed file; anything else ends the program.
template <class Reader>
void expect_one_clear_line(Reader&& reader) {
  try {
    reader();
  } catch (const Error& error) {
    if (*error.what() == '\0' || std::strchr(error.what(), '\n') != nullptr) std::abort();
  }
}

}  // namespace greyhound::fuzzing
