// Files that are written whole or not at all.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace greyhound {

// Hands bytes to the file being written.
using ByteSink = std::function<void(const void* data, std::size_t bytes)>;

// `write` fills a temporary file of this process beside `path`, which is then synced and renamed: `path` holds its old
// contents or all of the new ones, also after a crash. Throws a runtime Error that names the path and the system's
// reason; a failure leaves no temporary file.
void write_atomically(const std::string& path, const std::function<void(const ByteSink& sink)>& write);
void write_atomically(const std::string& path, const std::string& contents);

// The same step by step, for files whose beginning is known last. Not committed, it leaves nothing.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  AtomicFile(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(const void* data, std::size_t bytes);        // at the end
  void write_start(const void* data, std::size_t bytes);  // over what is at the start of the file
  void commit();

 private:
  std::string path_, name_;
  int descriptor_ = -1;
  bool renamed_ = false;
};

}  // namespace greyhound
