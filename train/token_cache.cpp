#include <greyhound/core/error.h>
#include <greyhound/train/cache_folder.h>
#include <greyhound/train/content_hash.h>
#include <greyhound/train/input_file.h>
#include <greyhound/train/number_text.h>
#include <greyhound/train/shard_writer.h>
#include <greyhound/train/token_cache.h>
#include <greyhound/train/token_shards.h>
#include <greyhound/train/tokenize_files.h>

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

namespace greyhound {
namespace {

namespace fs = std::filesystem;

constexpr const char* cache_version = "2";               // of what the shards hold
constexpr std::size_t long_text = std::size_t{1} << 26;  // bytes that take seconds

// A shard's tokens under the name of the text that they come from.
class CachedTokens final : public TokenFile {
 public:
  CachedTokens(const std::string& path, const TokenShard& shard) : path_(path), shard_(shard), file_(shard.path) {}

  const std::string& path() const override { return path_; }
  std::int64_t tokens() const override { return shard_.tokens; }
  void read(std::int64_t first, std::span<std::int32_t> tokens) const override {
    require(first >= 0 && first + static_cast<std::int64_t>(tokens.size()) <= shard_.tokens, path_, ": tokens ", first,
            " to ", first + static_cast<std::int64_t>(tokens.size()), " of ", shard_.tokens);
    read_shard_tokens(file_, shard_, first, tokens);
  }
  void check() const override { file_.check_size(); }
  void release() const override { file_.release(); }

 private:
  std::string path_;
  TokenShard shard_;
  MappedFile file_;
};

// Calls add(block) for the bytes of the file from `begin` on.
template <class Add>
void read_blocks(const InputFile& file, std::uint64_t begin, Add&& add) {
  constexpr std::uint64_t block = 1 << 22;
  for (std::uint64_t at = begin; at < file.size(); at += block) add(file.read(at, std::min(file.size(), at + block)));
}

// Tokens that were flipped on the disk would be blamed on the text.
bool is_whole(const std::string& shard) {
  const InputFile file(shard);
  std::array<std::uint64_t, 2> expected{};
  const std::string words = file.read(shard_header_bytes - sizeof expected, shard_header_bytes);
  std::memcpy(expected.data(), words.data(), sizeof expected);
  ContentHash hash;
  read_blocks(file, shard_header_bytes, [&](const std::string& block) { hash.add(block); });
  return hash.finish() == expected;
}

// A shard that is there and whole.
std::shared_ptr<const TokenFile> open_shard(const std::string& path, const std::string& shard) {
  std::error_code ignored;
  if (!fs::exists(shard, ignored)) return nullptr;
  try {
    const TokenShard header = read_shard_header(shard);
    if (is_whole(shard)) return std::make_shared<const CachedTokens>(path, header);
  } catch (const Error&) {
  }
  return nullptr;  // damaged: it is made anew
}

}  // namespace

std::shared_ptr<const TokenFile> open_cached_tokens(const std::string& path, const Tokenizer& tokenizer) {
  std::string key;
  std::size_t bytes = 0;
  {
    const InputFile text(path);
    bytes = text.size();
    if (bytes == 0) throw_runtime(path, ": expected text, found an empty file");
    ContentHash hash;
    read_blocks(text, 0, [&](const std::string& block) { hash.add(block); });
    key =
        content_hash(concat(cache_version, is_json_lines(path) ? " lines of JSON " : " text ",
                            to_hexadecimal(hash.finish()), content_hash(tokenizer.vocabulary()->to_tokenizer_json())));
  }
  const std::string folder = cache_folder(), shard = folder + "/" + key + ".bin";
  if (auto tokens = open_shard(path, shard)) return tokens;

  make_cache_folder();
  const CacheLock lock(folder + "/lock");
  if (auto tokens = open_shard(path, shard)) return tokens;  // made while this process waited
  if (bytes > long_text)
    spdlog::info("tokenizing {}, {} bytes, once", path, with_commas(static_cast<std::int64_t>(bytes)));
  ShardFile file(shard, tokenizer.vocab_size() <= 65536 ? 2 : 4, true);
  tokenize_files(tokenizer, {path}, {}, [&](bool, std::span<const std::int32_t> tokens) { file.append(tokens); });
  file.commit();
  return std::make_shared<const CachedTokens>(path, read_shard_header(shard));
}

}  // namespace greyhound
