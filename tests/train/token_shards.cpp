#include <doctest/doctest.h>
#include <greyhound/train/token_shards.h>

#include "test_files.h"

#include <string>

using namespace greyhound;
using namespace greyhound::testing;

TEST_CASE("token shards: both formats are read, whatever the name") {
  const TemporaryFolder folder;
  const std::string narrow = write_file(folder / "a.bin", shard_bytes<std::uint16_t>({1, 2, 65535}));
  const std::string wide = write_file(folder / "b.bin", shard_bytes<std::uint32_t>({1, 2, 128255, 0x7FFFFFFF}));
  CHECK(read_shard_header(narrow).tokens == 3);
  CHECK(read_shard_header(narrow).bytes_per_token == 2);
  CHECK(read_shard_header(wide).tokens == 4);
  CHECK(read_shard_header(wide).bytes_per_token == 4);
  CHECK(looks_like_token_shard(narrow));
  CHECK_FALSE(looks_like_token_shard(folder / "none"));

  const TokenShards shards({read_shard_header(narrow), read_shard_header(wide)}, 2, 1);
  std::vector<std::int32_t> window(3);
  shards.sequential_row(0, window);
  CHECK(window == std::vector<std::int32_t>{1, 2, 65535});
  shards.sequential_row(1, window);
  CHECK(window == std::vector<std::int32_t>{1, 2, 128255});
  CHECK(shards.sequential_rows() == 2);
  CHECK(shards.sequential_position(1, 2) == wide + ", token 2");
  CHECK(shards.training_position(3, 0, 1) == wide + ", token 1");
}

TEST_CASE("token shards: malformed files are one clear line: path, expected, found") {
  const TemporaryFolder folder;
  const std::string good = shard_bytes<std::uint16_t>({1, 2, 3, 4, 5});
  const auto with_int = [&](std::string bytes, std::size_t index, std::int32_t value) {
    std::memcpy(bytes.data() + 4 * index, &value, 4);
    return bytes;
  };
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 200001024\n";
  const struct {
    const char* what;
    std::string bytes;
    const char* part;
  } cases[] = {
      {"empty", "", "found an empty file"},
      {"3 bytes", "abc", "header of 1024 bytes, found a file of 3 bytes (text that begins \"abc\")"},
      {"a pointer file", pointer, "a Git LFS pointer: fetch the data with `git lfs pull`"},
      {"a long text", std::string(5000, 'x'), "found 2021161080 (text that begins \"xxxx"},
      {"noise", std::string(5000, '\x01'),
       "expected a token shard with magic number 20240520 or 20240801, found 16843009"},
      {"a cut header", good.substr(0, 1000), "found a file of 1000 bytes"},
      {"version 9", with_int(good, 1, 9),
       "expected version 1 of a token shard with magic number 20240520, found version 9"},
      {"the other format's version", with_int(good, 0, 20240801), "expected version 7"},
      {"two bytes short", good.substr(0, good.size() - 2), "expected 1034 bytes"},
      {"two bytes long", good + "ab", "found 1036 bytes"},
      {"more tokens than bytes", with_int(good, 2, 6), "expected 1036 bytes"},
      {"a negative count", with_int(good, 2, -1), "expected 8589935614 bytes"},
      {"no tokens, but data", with_int(good, 2, 0), "expected 1024 bytes"},
  };
  for (const auto& test : cases) {
    const std::string path = write_file(folder / "shard.bin", test.bytes);
    const std::string message = error_of([&] { read_shard_header(path); });
    CAPTURE(test.what);
    CAPTURE(message);
    CHECK(message.rfind("1: " + path + ": expected ", 0) == 0);
    CHECK(contains(message, test.part));
  }
  CHECK(contains(error_of([&] { read_shard_header(folder / "none.bin"); }), "none.bin: No such file"));
  CHECK(contains(error_of([&] { read_shard_header(folder.path()); }), "cannot read"));
}

TEST_CASE("token shards: a file that shrinks during the run is an error, not a crash") {
  const TemporaryFolder folder;
  const std::string a = write_file(folder / "a.bin", counting_shard(100));
  const std::string b = write_file(folder / "b.bin", counting_shard(100));
  const TokenShards shards({read_shard_header(a), read_shard_header(b)}, 10, 1);
  write_file(b, counting_shard(10));
  std::vector<std::int32_t> window(11);
  shards.training_row(0, 0, window);
  for (int attempt = 0; attempt < 2; ++attempt) {
    CHECK(contains(error_of([&] { shards.training_row(9, 0, window); }), b + ": expected 1424 bytes as at the start"));
  }
}
