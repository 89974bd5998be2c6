#include <greyhound/core/error.h>
#include <greyhound/train/git_lfs.h>
#include <greyhound/train/input_file.h>
#include <greyhound/train/token_shards.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace greyhound {
namespace {

struct Format {
  std::int32_t magic, version;
  int bytes_per_token;
};
constexpr Format formats[] = {{20240520, 1, 2}, {20240801, 7, 4}};

const Format* find_format(std::int32_t magic) {
  for (const Format& format : formats) {
    if (format.magic == magic) return &format;
  }
  return nullptr;
}

// What a file that is no shard begins with, for people.
std::string describe_start(const char* bytes, std::size_t count) {
  const std::size_t length = std::min<std::size_t>(count, 40);
  std::string text;
  for (std::size_t i = 0; i < length && bytes[i] != '\n'; ++i) {
    if (bytes[i] < 0x20 || bytes[i] > 0x7E) return "";
    text += bytes[i];
  }
  if (text.empty()) return "";
  const bool lfs = is_git_lfs_pointer(text);
  return concat(" (text that begins \"", text, "\"", lfs ? ", " : "", lfs ? git_lfs_advice : "", ")");
}

template <class Id>
void copy_ids(const std::byte* from, std::span<std::int32_t> window) {
  for (std::size_t i = 0; i < window.size(); ++i) {
    Id id;
    std::memcpy(&id, from + i * sizeof(Id), sizeof(Id));
    window[i] = static_cast<std::int32_t>(id);  // ids of 2^31 and more turn negative, which the loader refuses too
  }
}

}  // namespace

bool looks_like_token_shard(const std::string& path) {
  try {
    const InputFile file(path);
    std::int32_t magic = 0;
    if (file.size() < sizeof magic) return false;
    std::memcpy(&magic, file.read(0, sizeof magic).data(), sizeof magic);
    return find_format(magic) != nullptr;
  } catch (const Error&) {
    return false;
  }
}

TokenShard read_shard_header(const std::string& path) {
  const InputFile file(path);
  const std::uint64_t found = file.size();
  const std::string bytes = file.read(0, std::min<std::uint64_t>(found, shard_header_bytes));
  const std::size_t count = bytes.size();
  std::array<std::int32_t, shard_header_bytes / 4> header{};
  std::memcpy(header.data(), bytes.data(), count);

  const Format* format = count >= 4 ? find_format(header[0]) : nullptr;
  if (count < shard_header_bytes) {
    throw_runtime(path, ": expected a token shard, which starts with a header of ", shard_header_bytes,
                  " bytes, found ", found == 0 ? "an empty file" : concat("a file of ", found, " bytes"),
                  format == nullptr ? describe_start(bytes.data(), count) : "");
  }
  if (format == nullptr) {
    throw_runtime(path, ": expected a token shard with magic number ", formats[0].magic, " or ", formats[1].magic,
                  ", found ", header[0], describe_start(bytes.data(), count));
  }
  if (header[1] != format->version) {
    throw_runtime(path, ": expected version ", format->version, " of a token shard with magic number ", format->magic,
                  ", found version ", header[1]);
  }
  TokenShard shard{path, static_cast<std::int64_t>(static_cast<std::uint32_t>(header[2])), format->bytes_per_token};
  const std::int64_t expected = shard_header_bytes + shard.bytes_per_token * shard.tokens;
  if (found != static_cast<std::uint64_t>(expected)) {
    throw_runtime(path, ": expected ", expected, " bytes, a header of ", shard_header_bytes, " and ", shard.tokens,
                  " tokens of ", shard.bytes_per_token, " bytes, found ", found, " bytes");
  }
  return shard;
}

void read_shard_tokens(const MappedFile& file, const TokenShard& shard, std::int64_t first,
                       std::span<std::int32_t> tokens) {
  const std::byte* from = file.data() + shard_header_bytes + first * shard.bytes_per_token;
  shard.bytes_per_token == 2 ? copy_ids<std::uint16_t>(from, tokens) : copy_ids<std::uint32_t>(from, tokens);
}

TokenShards::TokenShards(std::vector<TokenShard> shards, std::int64_t block_size, std::int64_t rows_per_step)
    : shards_(std::move(shards)), block_size_(block_size), rows_per_step_(rows_per_step) {
  for (const TokenShard& shard : shards_) {
    steps_.add(shard_batches(shard.tokens, rows_per_step * block_size));
    rows_.add(shard_batches(shard.tokens, block_size));
  }
}

TokenShards::Place TokenShards::training_place(std::int64_t step, std::int64_t row) const {
  const auto [part, batch] = steps_[step % steps()];
  return {&shards_[part], shard_row_start(batch, rows_per_step_ * block_size_, row, block_size_)};
}

TokenShards::Place TokenShards::sequential_place(std::int64_t row) const {
  const auto [part, item] = rows_[row];
  return {&shards_[part], item * block_size_};
}

void TokenShards::read(const Place& place, std::span<std::int32_t> window) const {
  const TokenShard& shard = *place.shard;
  if (mapped_.path() != shard.path) {
    mapped_ = MappedFile(shard.path);
    const std::size_t expected = static_cast<std::size_t>(shard_header_bytes + shard.tokens * shard.bytes_per_token);
    const std::size_t found = mapped_.size();
    if (found != expected) {
      mapped_ = MappedFile();
      throw_runtime(shard.path, ": expected ", expected, " bytes as at the start of the run, found ", found);
    }
  }
  read_shard_tokens(mapped_, shard, place.first, window);
}

void TokenShards::training_row(std::int64_t step, std::int64_t row, std::span<std::int32_t> window) const {
  read(training_place(step, row), window);
}

void TokenShards::sequential_row(std::int64_t row, std::span<std::int32_t> window) const {
  read(sequential_place(row), window);
}

double TokenShards::epochs(std::int64_t steps) const {
  return static_cast<double>(steps) / static_cast<double>(this->steps());
}

std::string TokenShards::training_position(std::int64_t step, std::int64_t row, std::int64_t index) const {
  const Place place = training_place(step, row);
  return concat(place.shard->path, ", token ", place.first + index);
}

std::string TokenShards::sequential_position(std::int64_t row, std::int64_t index) const {
  const Place place = sequential_place(row);
  return concat(place.shard->path, ", token ", place.first + index);
}

}  // namespace greyhound
