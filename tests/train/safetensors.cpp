#include <doctest/doctest.h>
#include <greyhound/train/file_io.h>
#include <greyhound/train/safetensors.h>

#include "test_files.h"

#include <string>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

std::string file_bytes(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

std::size_t files_in(const std::string& folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

}  // namespace

TEST_CASE("safetensors: what is written reads back to the bit") {
  const TemporaryFolder folder;
  const std::string path = folder / "model.safetensors";
  const std::vector<float> weight = {1, -2, 3.5f, 0, 1e-40f, 7};
  const std::vector<bf16> half = {{0x3F80}, {0x7FC0}, {0x8000}};
  const std::vector<std::int64_t> steps = {-1, std::int64_t{1} << 60};
  const std::vector<std::uint8_t> bytes = {1, 2, 3};
  const double scalar = 0.1;
  write_safetensors(path,
                    {{"bytes", tensor(static_cast<const void*>(bytes.data()), DType::uint8, {3})},
                     {"half", tensor(static_cast<const void*>(half.data()), DType::bf16, {3, 1})},
                     {"weight", tensor(static_cast<const void*>(weight.data()), DType::fp32, {1, 2, 3})},
                     {"scalar", tensor(static_cast<const void*>(&scalar), DType::fp64, {})},
                     {"nothing", tensor(static_cast<const void*>(weight.data()), DType::fp32, {0, 4})},
                     {"steps", tensor(static_cast<const void*>(steps.data()), DType::int64, {2})}},
                    {{"format", "pt"}, {"note", "quote \" and é"}});
  const SafetensorsFile file(path);
  CHECK(file.path() == path);
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}, {"note", "quote \" and é"}});
  CHECK(file.names().size() == 6);
  CHECK(file.names().front() == "scalar");  // wide elements first
  CHECK(file.contains("half"));
  CHECK_FALSE(file.contains("__metadata__"));
  CHECK(file["weight"].shape == Shape{1, 2, 3});
  CHECK(std::memcmp(file["weight"].as<float>(), weight.data(), 24) == 0);
  CHECK(file["half"].shape == Shape{3, 1});
  CHECK(std::memcmp(file["half"].as<bf16>(), half.data(), 6) == 0);
  CHECK(file["steps"].as<std::int64_t>()[1] == steps[1]);
  CHECK(file["scalar"].shape == Shape{});
  CHECK(*file["scalar"].as<double>() == 0.1);
  CHECK(file["nothing"].elements() == 0);
  CHECK(std::memcmp(file["bytes"].data, bytes.data(), 3) == 0);
  CHECK(contains(error_of([&] { file["other"]; }), "1: " + path + ": has no tensor other"));
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("safetensors: a file of another writer, with odd offsets and types that are not ours") {
  const TemporaryFolder folder;
  const std::string path =
      write_file(folder / "a", file_bytes(R"( {"b":{"dtype":"F32","shape":[1],"data_offsets":[3,7]},)"
                                          R"("mask":{"dtype":"BOOL","shape":[1,1,1,1,3],"data_offsets":[0,3]}}   )",
                                          std::string("\1\0\1", 3) + std::string("\0\0\x80\x3F", 4)));
  const SafetensorsFile file(path);
  CHECK(file["b"].as<float>()[0] == 1.0f);
  CHECK(contains(error_of([&] { file["mask"]; }), "mask has dtype BOOL"));
  CHECK(SafetensorsFile(write_file(folder / "empty", file_bytes("{}", ""))).names().empty());
}

TEST_CASE("safetensors: malformed files are one clear line and never read out of bounds") {
  const TemporaryFolder folder;
  const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  const std::string eight(8, 'x');
  const struct {
    const char* what;
    std::string bytes;
    const char* part;
  } cases[] = {
      {"empty", "", "expected at least 8 bytes, found 0"},
      {"short", "abc", "found 3"},
      {"length beyond the file", std::string("\x09\0\0\0\0\0\0\0{}", 10), "at most 2 bytes, found a length of 9"},
      {"huge length", std::string("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF{}", 10), "found a length of 18446744073709551615"},
      {"no JSON", file_bytes("hello", ""), "not JSON: column 1: syntax error"},
      {"of Git LFS", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "a Git LFS pointer"},
      {"cut JSON", file_bytes(R"({"t":{"dtype")", ""), "not JSON"},
      {"text after JSON", file_bytes("{}{}", ""), "not JSON"},
      {"a list", file_bytes("[]", ""), "not a JSON object"},
      {"a number as entry", file_bytes(R"({"t":3})", ""), "t: expected dtype, shape and two data_offsets"},
      {"no shape", file_bytes(R"({"t":{"dtype":"F32","data_offsets":[0,8]}})", eight), "expected dtype, shape"},
      {"one offset", file_bytes(entry("F32", "[2]", "[0]"), eight), "two data_offsets"},
      {"unknown dtype", file_bytes(entry("F33", "[2]", "[0,8]"), eight), "unknown dtype F33"},
      {"offsets beyond the data", file_bytes(entry("F32", "[3]", "[0,12]"), eight),
       "within 8 bytes of data, found 0 to 12"},
      {"offsets backwards", file_bytes(entry("F32", "[2]", "[8,0]"), eight), "found 8 to 0"},
      {"negative offset", file_bytes(entry("F32", "[2]", "[-8,0]"), eight), "expected a whole number, found -8"},
      {"fractional offset", file_bytes(entry("F32", "[2]", "[0.0,8]"), eight), "expected a whole number"},
      {"offset above 64 bits", file_bytes(entry("F32", "[2]", "[0,99999999999999999999]"), eight),
       "expected a whole number"},
      {"shape against bytes", file_bytes(entry("F32", "[3]", "[0,8]"), eight),
       "expected 12 bytes for F32 of shape [3], found data_offsets of 8 bytes"},
      {"shape overflows", file_bytes(entry("F32", "[4294967296,4294967296,2]", "[0,8]"), eight), "expected more bytes"},
      {"shape overflows to the right number", file_bytes(entry("F32", "[4611686018427387905,1,2]", "[0,8]"), eight),
       "bytes for F32"},
      {"negative dimension", file_bytes(entry("F32", "[-2]", "[0,8]"), eight), "expected a whole number, found -2"},
      {"bytes left over", file_bytes(entry("F32", "[1]", "[0,4]"), eight), "expected 4 bytes of data, found 8"},
      {"a gap", file_bytes(entry("F32", "[1]", "[4,8]"), eight), "leaves a gap"},
      {"overlap",
       file_bytes(
           R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           eight),
       "b overlaps"},
      {"a name twice",
       file_bytes(
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           eight),
       "has a twice"},
      {"a name that would break the line",
       file_bytes(R"({"a\nb":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", eight),
       "control characters in the name a?b"},
      {"a dtype that would break the line", file_bytes(entry("F\\n3", "[2]", "[0,8]"), eight), "unknown dtype F?3"},
      {"metadata not text", file_bytes(R"({"__metadata__":{"a":1}})", ""), "__metadata__ is not an object of text"},
      {"metadata a list", file_bytes(R"({"__metadata__":["a"]})", ""), "__metadata__ is not an object of text"},
  };
  for (const auto& test : cases) {
    const std::string path = write_file(folder / "bad", test.bytes);
    const std::string message = error_of([&] { SafetensorsFile file(path); });
    CAPTURE(test.what);
    CAPTURE(message);
    CHECK(message.rfind("1: " + path + ": bad safetensors file: ", 0) == 0);
    CHECK(contains(message, test.part));
  }
  CHECK(contains(error_of([&] { SafetensorsFile(folder / "none"); }), "1: cannot open"));
}

TEST_CASE("safetensors: every cut of a good file is refused") {
  const TemporaryFolder folder;
  const std::vector<float> weight = {1, 2, 3, 4, 5, 6};
  const std::string path = folder / "good";
  write_safetensors(path, {{"w", tensor(static_cast<const void*>(weight.data()), DType::fp32, {2, 3})}}, {{"a", "b"}});
  const std::string good = read_file(path);
  for (std::size_t length = 0; length < good.size(); ++length) {
    write_file(path, good.substr(0, length));
    CHECK(contains(error_of([&] { SafetensorsFile file(path); }), "bad safetensors file"));
  }
  write_file(path, good + "x");
  CHECK(contains(error_of([&] { SafetensorsFile file(path); }), "expected 24 bytes of data, found 25"));
}

TEST_CASE("safetensors: a failed write leaves what was there, and no temporary file") {
  const TemporaryFolder folder;
  const std::string path = write_file(folder / "weights", "old");
  CHECK(contains(error_of([&] { write_safetensors(folder / "no/weights", {}); }), "1: cannot write"));
  CHECK_THROWS(write_atomically(path, [](const ByteSink& sink) {
    sink("half", 4);
    throw_runtime("stopped");
  }));
  CHECK(read_file(path) == "old");
  CHECK(files_in(folder.path()) == 1);
  write_atomically(path, "new");
  CHECK(read_file(path) == "new");
  CHECK(files_in(folder.path()) == 1);

  const float value = 1;
  const ConstTensor one = tensor(static_cast<const void*>(&value), DType::fp32, {1});
  CHECK(contains(error_of([&] { write_safetensors(path, {{"a", one}, {"a", one}}); }), "the name a is taken"));
  CHECK(contains(error_of([&] { write_safetensors(path, {{"__metadata__", one}}); }), "is taken"));
  CHECK(read_file(path) == "new");
}
