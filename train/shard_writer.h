// Writes token shards of the llm.c family (token_shards.h reads them).
#pragma once

#include <greyhound/train/content_hash.h>
#include <greyhound/train/file_io.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace greyhound {

// One shard, which appears under its name when it is complete.
class ShardFile {
 public:
  // bytes_per_token: 2 or 4. With `checksum` the header's last 16 bytes are the ContentHash of the tokens' bytes, else
  // 0.
  ShardFile(const std::string& path, int bytes_per_token, bool checksum = false);

  // Throws a usage Error with position and id for a token that does not fit, and for more than 2^32 - 1 tokens.
  void append(std::span<const std::int32_t> tokens);
  void commit();
  std::int64_t tokens() const { return tokens_; }

 private:
  void write(const void* data, std::size_t bytes);

  std::string path_;
  int bytes_per_token_;
  std::int64_t tokens_ = 0;
  std::vector<std::uint16_t> narrow_;
  std::optional<ContentHash> hash_;
  AtomicFile file_;
};

// FOLDER/PREFIX_000000.bin, FOLDER/PREFIX_000001.bin, ... of `shard_tokens` tokens each; the last has the rest.
class ShardWriter {
 public:
  ShardWriter(const std::string& folder, const std::string& prefix, int bytes_per_token, std::int64_t shard_tokens);

  void append(std::span<const std::int32_t> tokens);
  void finish();
  const std::vector<std::string>& paths() const { return paths_; }  // of complete shards
  std::int64_t tokens() const { return tokens_; }

 private:
  std::string next_path() const;

  std::string folder_, prefix_;
  int bytes_per_token_;
  std::int64_t shard_tokens_, tokens_ = 0;
  std::optional<ShardFile> shard_;
  std::vector<std::string> paths_;
};

}  // namespace greyhound
