// Files that are no files, that change while they are read, and folders that two want.
#include <doctest/doctest.h>
#include <greyhound/train/config.h>
#include <greyhound/train/input_file.h>
#include <greyhound/train/mapped_file.h>
#include <greyhound/train/text_file_check.h>
#include <greyhound/train/tokenizer.h>
#include <sys/stat.h>

#include "test_files.h"

using namespace greyhound;
using namespace greyhound::testing;

TEST_CASE("input file: parts, and a change of size") {
  const TemporaryFolder folder;
  const std::string path = write_file(folder / "a", "0123456789");
  const InputFile file(path);
  CHECK(file.size() == 10);
  CHECK(file.read(2, 5) == "234");
  CHECK(file.read(10, 10).empty());
  file.check_size();
  std::filesystem::resize_file(path, 4);
  CHECK(file.read(0, 4) == "0123");
  CHECK(error_of([&] { file.read(2, 8); }) == "1: " + path + ": changed while it was read: expected 10 bytes, found 4");
  CHECK(contains(error_of([&] { file.check_size(); }), "expected 10 bytes, found 4"));
  std::filesystem::resize_file(path, 11);
  CHECK(contains(error_of([&] { file.check_size(); }), "expected 10 bytes, found 11"));
}

TEST_CASE("input file: pipes, devices and folders are refused at once by every reader") {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const struct {
    std::string path, kind;
  } cases[] = {{pipe, "a pipe"}, {"/dev/zero", "a device"}, {folder.path(), "a folder"}};
  for (const auto& test : cases) {
    const std::string expected = "cannot read " + test.path + ": expected a regular file, found " + test.kind;
    CHECK(error_of([&] { InputFile(test.path); }) == "1: " + expected);
    CHECK(error_of([&] { MappedFile(test.path); }) == "1: " + expected);
    CHECK(error_of([&] { Tokenizer::load(test.path); }) == "1: " + expected);
    CHECK(error_of([&] { load_config(test.path); }) ==
          "2: cannot read the configuration " + test.path + ": " + expected);
    if (test.kind != "a folder") CHECK(error_of([&] { BpeVocabulary::load(test.path); }) == "1: " + expected);
  }
}

TEST_CASE("input file: configurations and tokenizers of absurd sizes are refused before they are read") {
  const TemporaryFolder folder;
  const std::string path = write_file(folder / "a", "");
  std::filesystem::resize_file(path, (std::uintmax_t{256} << 20) + 1);  // a hole, no blocks
  CHECK(contains(error_of([&] { Tokenizer::load(path); }), path + ": expected at most 268435456 bytes, found "));
  CHECK(contains(error_of([&] { BpeVocabulary::load(path); }), path + ": expected at most 268435456 bytes, found "));
  CHECK(contains(error_of([&] { load_config(path); }), path + ": expected at most 16777216 bytes, found "));
}

TEST_CASE("input file: a folder is locked until the lock goes") {
  const TemporaryFolder folder;
  const auto lock = [&] { const FolderLock second(folder.path()); };
  {
    const FolderLock first(folder.path());
    CHECK(error_of(lock) == "1: " + folder.path() + ": another greyhound is writing to this folder");
  }
  CHECK(error_of(lock) == "no error");
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("text file check: known formats are no text") {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  const auto error = [&](const std::string& bytes) {
    write_file(path, bytes);
    return error_of([&] { refuse_binary(path); });
  };
  const auto model = [](std::int32_t magic) { return std::string(reinterpret_cast<const char*>(&magic), 4) + "abc"; };
  CHECK(error(shard_bytes<std::uint16_t>({1, 2})) == "1: " + path + ": expected text, found a token shard");
  CHECK(contains(error(shard_bytes<std::uint32_t>({1, 2})), "found a token shard"));
  CHECK(contains(error(model(20240326)), "found a model of llm.c"));
  CHECK(contains(error(std::string("\x02\0\0\0\0\0\0\0{}", 10)), "found a safetensors file"));
  CHECK(contains(error("\x1F\x8B\b"), "found compressed by gzip"));
  for (const char* text : {"", "a", "PK", "{\"text\": 3}", "\xEF\xBB\xBFtext", "a long line of text"}) {
    CAPTURE(text);
    CHECK(error(text) == "no error");
  }
}

TEST_CASE("text file check: lines of JSON under the name .json") {
  const TemporaryFolder folder;
  const auto error = [&](const char* name, const char* text) {
    const std::string path = write_file(folder / name, text);
    return error_of([&] { refuse_misnamed_json_lines(path); });
  };
  CHECK(
      contains(error("a.json", "{\"prompt\": \"a\", \"completion\": \"b\"}\n"), "a.json: begins with {\"prompt\": as"));
  CHECK(contains(error("A.JSON", " { \"text\" : \"a\"}\n"), "whose names end in .jsonl or .ndjson"));
  CHECK(error("a.json", "[1, 2]") == "no error");
  CHECK(error("a.txt", "{\"text\": \"a\"}") == "no error");
  CHECK(error("a.JSONL", "{\"text\": \"a\"}") == "no error");
}
