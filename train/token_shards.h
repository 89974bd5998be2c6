// Token shards of the llm.c family: a header of 256 int32, then 16-bit or 32-bit token ids.
#pragma once

#include <greyhound/train/data_source.h>
#include <greyhound/train/mapped_file.h>
#include <greyhound/train/window_order.h>

#include <string>
#include <vector>

namespace greyhound {

struct TokenShard {
  std::string path;
  std::int64_t tokens = 0;
  int bytes_per_token = 2;
};

inline constexpr std::int64_t shard_header_bytes = 1024;

// Whether the file starts as a shard does. False for files that cannot be read.
bool looks_like_token_shard(const std::string& path);

// Checks magic number, version and exact size. Throws a runtime Error of one line: path, expected, found.
TokenShard read_shard_header(const std::string& path);

// The tokens [first, first + tokens.size()) of a mapped shard; ids of 2^31 and more turn negative.
void read_shard_tokens(const MappedFile& file, const TokenShard& shard, std::int64_t first,
                       std::span<std::int32_t> tokens);

// Training takes the shards in their order, over and over, in whole steps that lie within one shard.
class TokenShards final : public DataSource {
 public:
  TokenShards(std::vector<TokenShard> shards, std::int64_t block_size, std::int64_t rows_per_step);

  void training_row(std::int64_t step, std::int64_t row, std::span<std::int32_t> window) const override;
  void sequential_row(std::int64_t row, std::span<std::int32_t> window) const override;
  std::int64_t sequential_rows() const override { return rows_.total(); }
  double epochs(std::int64_t steps) const override;
  std::string training_position(std::int64_t step, std::int64_t row, std::int64_t index) const override;
  std::string sequential_position(std::int64_t row, std::int64_t index) const override;
  void check() const override { mapped_.check_size(); }
  void release() const override { mapped_.release(); }

  std::int64_t steps() const { return steps_.total(); }  // of an epoch

 private:
  struct Place {
    const TokenShard* shard;
    std::int64_t first;  // token of the shard
  };
  Place training_place(std::int64_t step, std::int64_t row) const;
  Place sequential_place(std::int64_t row) const;
  void read(const Place& place, std::span<std::int32_t> window) const;

  std::vector<TokenShard> shards_;
  std::int64_t block_size_, rows_per_step_;
  PartIndex steps_, rows_;
  mutable MappedFile mapped_;  // the shard that was read last: thousands may make up a data set
};

}  // namespace greyhound
