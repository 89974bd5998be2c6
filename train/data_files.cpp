#include <greyhound/train/data_files.h>

#include <greyhound/train/content_hash.h>
#include <greyhound/train/find_files.h>
#include <greyhound/train/input_file.h>

#include <algorithm>

namespace greyhound {

namespace {

DataFile describe(const std::string& path) {
  constexpr std::uint64_t looked_at = 64 << 10;
  const InputFile file(path);
  const std::uint64_t size = file.size(), part = std::min(size, looked_at);
  ContentHash hash;
  hash.add(file.read(0, part));
  hash.add(file.read(size - part, size));
  return {path, static_cast<std::int64_t>(size), to_hexadecimal(hash.finish())};
}

}  // namespace

std::vector<DataFile> data_files(const Config& config) {
  std::vector<DataFile> files;
  if (config.data.train == "synthetic") return files;
  for (const std::string& path : find_files("data.train", config.data.train)) files.push_back(describe(path));
  if (config.data.val.empty()) return files;
  for (const std::string& path : find_files("data.val", config.data.val)) files.push_back(describe(path));
  return files;
}

}  // namespace greyhound
