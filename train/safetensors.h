// safetensors: named tensors in one file (https://huggingface.co/docs/safetensors).
#pragma once

#include <greyhound/core/tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace greyhound {

class ContentHash;

struct NamedTensor {
  std::string name;
  ConstTensor tensor;  // contiguous, in host memory
};

// Writes to a temporary file beside `path`, syncs it and renames it: `path` holds the old contents or all of the new
// ones. Throws a runtime Error that names the path; a failure leaves no temporary file. `hash` is given all bytes of
// the file.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {}, ContentHash* hash = nullptr);

// A memory-mapped file. Header length, offsets, shapes and dtypes are checked against the file's size before anything
// is used; a malformed file is a runtime Error of one line (path, expected, found). The views last as long as the
// object.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;

  const std::string& path() const;
  const std::map<std::string, std::string>& metadata() const;
  std::vector<std::string> names() const;  // in the order of the data
  bool contains(const std::string& name) const;

  // Throws a runtime Error when there is no such tensor, or when its dtype or rank is none of ours (such tensors may be
  // in the file as long as nobody asks for them).
  ConstTensor operator[](const std::string& name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace greyhound
