#include <greyhound/core/error.h>
#include <greyhound/train/input_file.h>
#include <greyhound/train/text_file_check.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string_view>

namespace greyhound {
namespace {

struct Magic {
  std::string_view bytes;
  const char* name;
};
using namespace std::string_view_literals;
// Numbers are little endian.
constexpr Magic magics[] = {
    {"\x88\xD8\x34\x01"sv, "a token shard"},              // 20240520
    {"\xA1\xD9\x34\x01"sv, "a token shard"},              // 20240801
    {"\xC6\xD7\x34\x01"sv, "a model of llm.c"},           // 20240326
    {"\xC7\xD7\x34\x01"sv, "a training state of llm.c"},  // 20240327
    {"\xC8\xD7\x34\x01"sv, "a tokenizer of llm.c"},       // 20240328
    {"\x1F\x8B"sv, "compressed by gzip"},
    {"\x28\xB5\x2F\xFD"sv, "compressed by zstd"},
    {"\xFD\x37zXZ\0"sv, "compressed by xz"},
    {"BZh9"sv, "compressed by bzip2"},
    {"PK\x03\x04"sv, "a zip archive"},
    {"PAR1"sv, "a Parquet file"},
    {"ARROW1\0"sv, "an Arrow file"},
    {"%PDF-"sv, "a PDF"},
    {"\x93NUMPY"sv, "a NumPy array"},
    {"\x7F\x45LF"sv, "a program"},
};

// A number of 8 bytes, the length of the JSON object that follows: no text begins with it, for its last bytes are 0.
bool is_safetensors(std::string_view start, std::uint64_t size) {
  std::uint64_t header = 0;
  if (start.size() < 10) return false;
  std::memcpy(&header, start.data(), sizeof header);
  return header >= 2 && header <= size - 8 && start[8] == '{';
}

}  // namespace

std::string lower_extension(const std::string& path) {
  std::string extension = std::filesystem::path(path).extension().string();
  for (char& c : extension) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return extension;
}

void refuse_binary(const std::string& path) {
  const InputFile file(path);
  const std::string start = file.read(0, std::min<std::uint64_t>(file.size(), 16));
  const auto refuse = [&](const char* name) { throw_runtime(path, ": expected text, found ", name); };
  for (const Magic& magic : magics) {
    if (std::string_view(start).substr(0, magic.bytes.size()) == magic.bytes) refuse(magic.name);
  }
  if (is_safetensors(start, file.size())) refuse("a safetensors file");
}

void refuse_misnamed_json_lines(const std::string& path) {
  if (lower_extension(path) != ".json") return;
  const InputFile file(path);
  std::string start = file.read(0, std::min<std::uint64_t>(file.size(), 256));
  start.erase(std::remove_if(start.begin(), start.end(),
                             [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }),
              start.end());
  for (const char* key : {"{\"text\":", "{\"prompt\":", "{\"completion\":"}) {
    if (start.rfind(key, 0) == 0) {
      throw_runtime(path, ": begins with ", key,
                    " as lines of JSON do, whose names end in .jsonl or .ndjson; found .json");
    }
  }
}

}  // namespace greyhound
