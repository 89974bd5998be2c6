#include <greyhound/train/data_files.h>

#include <greyhound/train/content_hash.h>
#include <greyhound/train/find_files.h>
#include <greyhound/train/input_file.h>

#include <algorithm>

namespace greyhound {

namespace {

DataFile describe(const std::string& path) {
  constexpr std::uint64_t piece = 64 << 10, places = 256;
  const InputFile file(path);
  const std::uint64_t size = file.size();
  ContentHash hash;
  const auto add = [&](std::uint64_t begin) { hash.add(file.read(begin, std::min(begin + piece, size))); };
  if (size <= piece * places) {
    for (std::uint64_t begin = 0; begin < size; begin += piece) add(begin);
  } else {
    for (std::uint64_t place = 0; place < places; ++place) add((size - piece) / (places - 1) * place);
    add(size - piece);
  }
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
