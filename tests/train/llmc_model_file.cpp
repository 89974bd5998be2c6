#include "stored_model.h"

#include <doctest/doctest.h>
#include <greyhound/train/llmc_model_file.h>

#include <array>
#include <numeric>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

// 5 positions, vocabulary 7 stored as 8, 2 layers, 2 heads, 4 channels.
constexpr std::array<std::int32_t, 6> small_sizes = {5, 7, 2, 2, 4, 8};
constexpr std::int64_t small_elements = 8 * 4 + 5 * 4 + 2 * (12 * 16 + 13 * 4) + 2 * 4;

std::string header(std::int32_t magic, std::int32_t version, const std::array<std::int32_t, 6>& sizes) {
  std::array<std::int32_t, 256> words{magic, version};
  std::copy(sizes.begin(), sizes.end(), words.begin() + 2);
  return {reinterpret_cast<const char*>(words.data()), sizeof words};
}

// Element i of the data is i.
template <class T>
std::string counting(std::int64_t elements) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < elements; ++i) values.push_back(from_float<T>(static_cast<float>(i)));
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

float first_element(const ModelFile& model, const std::string& name) {
  const ConstTensor& values = model.tensors.at(name).values;
  return values.dtype == DType::bf16 ? to_float(values.as<bf16>()[0]) : values.as<float>()[0];
}

}  // namespace

TEST_CASE("llm.c model: every array is where the format has it") {
  const TemporaryFolder folder;
  const std::string path =
      write_file(folder / "m.bin", header(20240326, 3, small_sizes) + counting<float>(small_elements));
  const ModelFile model = read_llmc_model(path);
  CHECK(model.sizes.block_size == 5);
  CHECK(model.sizes.vocab_size == 7);
  CHECK(model.sizes.n_layer == 2);
  CHECK(model.sizes.n_head == 2);
  CHECK(model.sizes.n_embd == 4);
  CHECK(model.sizes.bias);
  CHECK(model.sizes.tie_embeddings);
  CHECK(model.tensors.size() == 4 + 2 * 12);
  // Offsets added up by hand, C = 4: wte 32, wpe 20, then two layers each of 4, 4, 48, 12, 16, 4, 4, 4, 64, 16, 64, 4.
  const std::pair<const char*, float> places[] = {{"wte.weight", 0},
                                                  {"wpe.weight", 32},
                                                  {"h.0.ln_1.weight", 52},
                                                  {"h.1.ln_1.weight", 56},
                                                  {"h.1.ln_1.bias", 64},
                                                  {"h.0.attn.c_attn.weight", 68},
                                                  {"h.1.attn.c_attn.weight", 116},
                                                  {"h.1.attn.c_attn.bias", 176},
                                                  {"h.0.attn.c_proj.weight", 188},
                                                  {"h.1.attn.c_proj.bias", 224},
                                                  {"h.0.ln_2.weight", 228},
                                                  {"h.1.ln_2.bias", 240},
                                                  {"h.0.mlp.c_fc.weight", 244},
                                                  {"h.1.mlp.c_fc.bias", 388},
                                                  {"h.1.mlp.c_proj.weight", 468},
                                                  {"h.1.mlp.c_proj.bias", 536},
                                                  {"ln_f.weight", 540},
                                                  {"ln_f.bias", 544}};
  for (const auto& [name, place] : places) {
    CAPTURE(name);
    CHECK(first_element(model, name) == place);
  }
  CHECK(model.tensors.at("h.1.mlp.c_fc.weight").values.shape == Shape{16, 4});
  CHECK(model.tensors.at("h.1.mlp.c_proj.weight").values.shape == Shape{4, 16});
  CHECK_FALSE(model.tensors.at("h.1.mlp.c_proj.weight").transposed);
}

TEST_CASE("llm.c model: version 5 is bf16") {
  const TemporaryFolder folder;
  const std::string path =
      write_file(folder / "m.bin", header(20240326, 5, small_sizes) + counting<bf16>(small_elements));
  const ModelFile model = read_llmc_model(path);
  CHECK(first_element(model, "wpe.weight") == 32);
  CHECK(first_element(model, "ln_f.bias") == 544);
}

TEST_CASE("llm.c model: malformed files are one line with path, expected and found") {
  const TemporaryFolder folder;
  const std::string data = counting<float>(small_elements);
  const auto sizes = [](int at, std::int32_t value) {
    std::array<std::int32_t, 6> changed = small_sizes;
    changed[at] = value;
    return changed;
  };
  const std::int32_t most = std::numeric_limits<std::int32_t>::max();
  struct Case {
    std::string bytes, part;
  };
  const Case cases[] = {
      {"", "expected a header of 1024 bytes, found 0"},
      {"abc", "found 3"},
      {header(20240326, 3, small_sizes).substr(0, 1023), "found 1023"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 497904640\n", "found a Git LFS pointer"},
      {std::string(2000, 'x'), "expected the number 20240326"},
      {header(20240520, 1, small_sizes) + data, "a token shard"},
      {header(20240327, 2, small_sizes) + data, "debug state"},
      {header(20240326, 1, small_sizes) + data, "expected version 3 (fp32) or 5 (bf16), found 1"},
      {header(20240326, 9, small_sizes) + data, "found 9"},
      {header(20240326, 3, small_sizes) + data.substr(2), "found " + std::to_string(1024 + data.size() - 2)},
      {header(20240326, 3, small_sizes) + data + "xx", "expected " + std::to_string(1024 + data.size())},
      {header(20240326, 5, small_sizes) + data, "expected " + std::to_string(1024 + data.size() / 2)},
      {header(20240326, 3, small_sizes), "found 1024"},
      {header(20240326, 3, sizes(0, 0)) + data, "positions: expected at least 1, found 0"},
      {header(20240326, 3, sizes(2, -1)) + data, "layers: expected at least 1, found -1"},
      {header(20240326, 3, sizes(3, 3)) + data, "a multiple of the 3 heads, found 4"},
      {header(20240326, 3, sizes(5, 6)) + data, "expected a padded vocabulary of at least 7, found 6"},
      {header(20240326, 3, sizes(2, most)) + data, "expected "},
      {header(20240326, 3, {most, most, most, most, most, most}) + data, "more than 2^62 bytes"},
      {header(20240326, 3, {1, 1, most, 1, 1, 1}) + data, "expected "},
  };
  for (const Case& c : cases) {
    CAPTURE(c.part);
    const std::string path = write_file(folder / "m.bin", c.bytes);
    const std::string error = error_of([&] { read_llmc_model(path); });
    CAPTURE(error);
    CHECK(error.rfind("1: " + path + ": bad llm.c model: ", 0) == 0);
    CHECK(contains(error, c.part));
  }
  CHECK(contains(error_of([&] { read_llmc_model(folder / "none"); }), folder / "none"));
}

TEST_CASE("llm.c model: written files have the sizes and the padding of llm.c's own") {
  const TemporaryFolder folder;
  make_run(folder / "run");
  const ModelFile run = read_run_model(folder / "run");
  write_llmc_model(folder / "m.bin", run, DType::fp32);
  const std::string bytes = read_file(folder / "m.bin");
  std::array<std::int32_t, 8> words;
  std::memcpy(words.data(), bytes.data(), sizeof words);
  CHECK(words == std::array<std::int32_t, 8>{20240326, 3, 9, 17, 2, 3, 12, 128});
  const std::size_t elements = 128 * 12 + 9 * 12 + 2 * (12 * 144 + 13 * 12) + 2 * 12;
  CHECK(bytes.size() == 1024 + 4 * elements);
  const std::string padding = bytes.substr(1024 + 4 * 17 * 12, 4 * 111 * 12);
  CHECK(padding == std::string(padding.size(), '\0'));

  // bf16 rounds what fp32 holds, and nothing else.
  write_llmc_model(folder / "half.bin", run, DType::bf16);
  CHECK(read_file(folder / "half.bin").size() == 1024 + 2 * elements);
  const ModelFile half = read_llmc_model(folder / "half.bin");
  const ModelFile full = read_llmc_model(folder / "m.bin");
  for (const auto& [name, stored] : full.tensors) {
    CAPTURE(name);
    const ConstTensor& rounded = half.tensors.at(name).values;
    bool equal = true;
    for (std::int64_t i = 0; i < rounded.elements(); ++i) {
      equal = equal && rounded.as<bf16>()[i].bits == from_float<bf16>(stored.values.as<float>()[i]).bits;
    }
    CHECK(equal);
  }
}

TEST_CASE("llm.c model: a damaged file is refused, or is another model of the same size") {
  const TemporaryFolder folder;
  const std::string whole = header(20240326, 3, small_sizes) + counting<float>(small_elements);
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const std::string path = write_file(folder / "m.bin", damaged(whole, seed % 2 == 0 ? 32 : 1024, seed));
    const std::string error = error_of([&] { sum_of(read_llmc_model(path)); });
    CHECK((error == "no error" || error.rfind("1: " + path + ": bad llm.c model: ", 0) == 0));
    refused += error != "no error";
  }
  CHECK(refused > 100);
}
