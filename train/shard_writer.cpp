#include <greyhound/core/error.h>
#include <greyhound/train/shard_writer.h>
#include <greyhound/train/token_shards.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

namespace greyhound {

ShardFile::ShardFile(const std::string& path, int bytes_per_token, bool checksum)
    : path_(path), bytes_per_token_(bytes_per_token), file_(path) {
  require(bytes_per_token == 2 || bytes_per_token == 4, path, ": tokens of ", bytes_per_token,
          " bytes, expected 2 or 4");
  const std::array<char, shard_header_bytes> room{};
  file_.write(room.data(), room.size());
  if (checksum) hash_.emplace();
}

void ShardFile::write(const void* data, std::size_t bytes) {
  if (hash_) hash_->add({static_cast<const char*>(data), bytes});
  file_.write(data, bytes);
}

void ShardFile::append(std::span<const std::int32_t> tokens) {
  const std::int64_t limit = bytes_per_token_ == 2 ? 0xFFFF : 0x7FFFFFFF;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    require(tokens[i] >= 0 && tokens[i] <= limit, path_, ": token ", tokens_ + static_cast<std::int64_t>(i), ": id ",
            tokens[i], " does not fit a shard of ids from 0 to ", limit);
  }
  tokens_ += static_cast<std::int64_t>(tokens.size());
  require(tokens_ <= 0xFFFFFFFF, path_, ": a token shard holds at most 2^32 - 1 tokens");
  if (bytes_per_token_ == 4) {
    write(tokens.data(), tokens.size_bytes());
  } else {
    narrow_.assign(tokens.begin(), tokens.end());
    write(narrow_.data(), narrow_.size() * sizeof narrow_[0]);
  }
}

void ShardFile::commit() {
  std::array<std::uint32_t, shard_header_bytes / 4> header = {bytes_per_token_ == 2 ? 20240520u : 20240801u,
                                                              bytes_per_token_ == 2 ? 1u : 7u,
                                                              static_cast<std::uint32_t>(tokens_)};
  if (hash_) {
    const std::array<std::uint64_t, 2> hash = hash_->finish();
    std::memcpy(header.data() + header.size() - 4, hash.data(), sizeof hash);
  }
  file_.write_start(header.data(), sizeof header);
  file_.commit();
}

ShardWriter::ShardWriter(const std::string& folder, const std::string& prefix, int bytes_per_token,
                         std::int64_t shard_tokens)
    : folder_(folder), prefix_(prefix), bytes_per_token_(bytes_per_token), shard_tokens_(shard_tokens) {
  require(shard_tokens >= 1, "token shards of ", shard_tokens, " tokens, expected at least 1");
}

std::string ShardWriter::next_path() const {
  char name[16];
  std::snprintf(name, sizeof name, "_%06zu.bin", paths_.size());
  return folder_ + "/" + prefix_ + name;
}

void ShardWriter::append(std::span<const std::int32_t> tokens) {
  while (!tokens.empty()) {
    if (!shard_) shard_.emplace(next_path(), bytes_per_token_);
    const auto room = static_cast<std::size_t>(shard_tokens_ - shard_->tokens());
    const std::span<const std::int32_t> part = tokens.first(std::min(room, tokens.size()));
    shard_->append(part);
    tokens_ += static_cast<std::int64_t>(part.size());
    tokens = tokens.subspan(part.size());
    if (shard_->tokens() == shard_tokens_) finish();
  }
}

void ShardWriter::finish() {
  if (!shard_) return;
  const std::string path = next_path();
  shard_->commit();
  shard_.reset();
  paths_.push_back(path);
}

}  // namespace greyhound
