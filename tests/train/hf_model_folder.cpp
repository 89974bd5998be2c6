// tests/train/data/hf_gpt2 was written by transformers: see scripts/make_hf_vector.py.
#include "stored_model.h"

#include <doctest/doctest.h>
#include <greyhound/train/hf_model_folder.h>
#include <greyhound/train/safetensors.h>

#include <cmath>
#include <nlohmann/json.hpp>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

const std::string fixture = std::string(GREYHOUND_SOURCE_DIR) + "/tests/train/data/hf_gpt2";

struct Expected {
  std::vector<std::int32_t> tokens;
  std::vector<std::vector<double>> logits;
};
Expected expected_logits() {
  const nlohmann::json json = nlohmann::json::parse(read_file(fixture + "/logits.json"));
  return {json["tokens"], json["logits"]};
}

double largest_difference(const ModelFile& model) {
  const Expected expected = expected_logits();
  const auto logits = logits_of(model, expected.tokens);
  REQUIRE(logits.size() == expected.logits.size());
  double largest = 0;
  for (std::size_t row = 0; row < logits.size(); ++row) {
    REQUIRE(logits[row].size() == expected.logits[row].size());
    for (std::size_t i = 0; i < logits[row].size(); ++i) {
      const double difference = std::abs(logits[row][i] - expected.logits[row][i]);
      largest = std::isfinite(difference) ? std::max(largest, difference) : INFINITY;
    }
  }
  return largest;
}

// The fixture with its tensors and its config.json changed.
class Variant {
 public:
  Variant()
      : file_(fixture + "/model.safetensors"), config(nlohmann::json::parse(read_file(fixture + "/config.json"))) {
    for (const std::string& name : file_.names()) tensors.push_back({name, file_[name]});
  }
  ConstTensor operator[](const std::string& name) const { return file_[name]; }
  NamedTensor& find(const std::string& name) {
    return *std::find_if(tensors.begin(), tensors.end(), [&](const NamedTensor& t) { return t.name == name; });
  }
  void remove(const std::string& name) { tensors.erase(tensors.begin() + (&find(name) - tensors.data())); }
  std::string write(const std::string& folder) const {
    std::filesystem::create_directories(folder);
    write_file(folder + "/config.json", config.dump());
    write_safetensors(folder + "/model.safetensors", tensors);
    return folder;
  }

 private:
  SafetensorsFile file_;

 public:
  nlohmann::json config;
  std::vector<NamedTensor> tensors;
};

}  // namespace

TEST_CASE("Hugging Face: imported weights give the logits of transformers") {
  const ModelFile model = read_hf_model(fixture);
  CHECK(model.sizes.n_layer == 2);
  CHECK(model.sizes.n_head == 3);
  CHECK(model.sizes.n_embd == 24);
  CHECK(model.sizes.block_size == 16);
  CHECK(model.sizes.vocab_size == 61);
  const double difference = largest_difference(model);
  CAPTURE(difference);
  CHECK(difference < 1e-4);
}

TEST_CASE("Hugging Face: what else may be in a folder of GPT-2") {
  const TemporaryFolder folder;
  SUBCASE("names without a prefix, the causal masks of old files, and a tied head stored once more") {
    Variant variant;
    for (NamedTensor& named : variant.tensors) named.name = named.name.substr(std::string("transformer.").size());
    const std::vector<float> mask(256, 1.0f);
    variant.tensors.push_back({"h.0.attn.bias", tensor(mask.data(), DType::fp32, {1, 1, 16, 16})});
    variant.tensors.push_back({"h.1.attn.masked_bias", tensor(mask.data(), DType::fp32, {1})});
    variant.tensors.push_back({"lm_head.weight", variant["transformer.wte.weight"]});
    CHECK(largest_difference(read_hf_model(variant.write(folder / "hf"))) < 1e-4);
  }
  SUBCASE("a vocabulary with rows of padding") {
    Variant variant;
    const ConstTensor wte = variant["transformer.wte.weight"];
    std::vector<float> padded(64 * 24, 1000.0f);
    std::copy_n(wte.as<float>(), wte.elements(), padded.begin());
    variant.find("transformer.wte.weight").tensor =
        tensor(static_cast<const void*>(padded.data()), DType::fp32, {64, 24});
    CHECK(largest_difference(read_hf_model(variant.write(folder / "hf"))) < 1e-4);
  }
  SUBCASE("a head of its own") {
    Variant variant;
    const ConstTensor wte = variant["transformer.wte.weight"];
    std::vector<float> doubled(wte.as<float>(), wte.as<float>() + wte.elements());
    for (float& value : doubled) value *= 2;
    variant.config["tie_word_embeddings"] = false;
    variant.tensors.push_back(
        {"lm_head.weight", tensor(static_cast<const void*>(doubled.data()), DType::fp32, {61, 24})});
    const ModelFile model = read_hf_model(variant.write(folder / "hf"));
    CHECK_FALSE(model.sizes.tie_embeddings);
    const Expected expected = expected_logits();
    const auto logits = logits_of(model, expected.tokens);
    CHECK(std::abs(logits.back()[5] - 2 * expected.logits.back()[5]) < 2e-4);
    write_hf_model(folder / "again", model, DType::fp32, 0);
    CHECK(logits_of(read_hf_model(folder / "again"), expected.tokens) == logits);
  }
  SUBCASE("weights in bf16 or fp16") {
    write_hf_model(folder / "half", read_hf_model(fixture), DType::bf16, 0.1);
    CHECK(SafetensorsFile(folder / "half/model.safetensors")["transformer.ln_f.bias"].dtype == DType::bf16);
    const double difference = largest_difference(read_hf_model(folder / "half"));
    CHECK(difference > 1e-4);
    CHECK(difference < 0.3);
  }
}

TEST_CASE("Hugging Face: what is written is what transformers wrote") {
  const TemporaryFolder folder;
  write_hf_model(folder / "hf", read_hf_model(fixture), DType::fp32, 0.1);
  const SafetensorsFile ours(folder / "hf/model.safetensors"), theirs(fixture + "/model.safetensors");
  CHECK(ours.names().size() == theirs.names().size());
  CHECK(ours.metadata().at("format") == "pt");
  for (const std::string& name : theirs.names()) {
    CAPTURE(name);
    REQUIRE(ours.contains(name));
    REQUIRE(ours[name].shape == theirs[name].shape);
    CHECK(std::memcmp(ours[name].data, theirs[name].data, theirs[name].bytes()) == 0);
  }
  // Every key that both have has one value, but for what names versions.
  const nlohmann::json config = nlohmann::json::parse(read_file(folder / "hf/config.json"));
  const nlohmann::json reference = nlohmann::json::parse(read_file(fixture + "/config.json"));
  for (const auto& [key, value] : config.items()) {
    CAPTURE(key);
    if (reference.contains(key)) CHECK(value == reference[key]);
  }
}

TEST_CASE("Hugging Face: models and files that do not fit are one line with path, expected and found") {
  const TemporaryFolder folder;
  struct Case {
    std::function<void(Variant&)> change;
    std::string part;
  };
  const std::vector<float> zeros(61 * 24);
  const auto values = [&](const Shape& shape) {
    return tensor(static_cast<const void*>(zeros.data()), DType::fp32, shape);
  };
  const auto set = [](const char* key, const nlohmann::json& value) {
    return [key, value](Variant& variant) { variant.config[key] = value; };
  };
  const Case cases[] = {
      {set("model_type", "llama"), "model_type: expected gpt2, found \"llama\""},
      {set("activation_function", "relu"), "activation_function: expected gelu_new, found \"relu\""},
      {set("activation_function", "gelu"), "activation_function"},
      {set("layer_norm_epsilon", 1e-6), "layer_norm_epsilon: expected 1e-5"},
      {set("n_inner", 100), "n_inner: expected 96 or null, found 100"},
      {set("scale_attn_weights", false), "scale_attn_weights"},
      {set("scale_attn_by_inverse_layer_idx", true), "scale_attn_by_inverse_layer_idx"},
      {set("add_cross_attention", true), "add_cross_attention"},
      {set("tie_word_embeddings", "yes"), "tie_word_embeddings: expected true or false, found \"yes\""},
      {set("n_layer", 0), "n_layer: expected a whole number from 1 to 65536, found 0"},
      {set("n_layer", 2.5), "n_layer"},
      {set("n_layer", nullptr), "n_layer"},
      {set("n_embd", 9000000000), "n_embd"},
      {set("vocab_size", -1), "vocab_size"},
      {set("n_head", 5), "n_embd: expected a multiple of n_head 5, found 24"},
      {[](Variant& v) { v.config.erase("n_embd"); },
       "n_embd: expected a whole number from 1 to 1048576, found nothing"},
      {set("n_layer", 65536), "has no tensor transformer.h.2."},
      {set("n_layer", 1), "holds a tensor transformer.h.1."},
      {set("vocab_size", 62), "wte.weight: expected shape [62, 24], found [61, 24]"},
      {set("n_positions", 17), "wpe.weight: expected shape [17, 24], found [16, 24]"},
      {set("n_embd", 48), "wte.weight: expected shape [61, 48]"},
      {set("tie_word_embeddings", false), "has no tensor lm_head.weight"},
      {[](Variant& v) { v.remove("transformer.h.1.mlp.c_fc.bias"); }, "has no tensor transformer.h.1.mlp.c_fc.bias"},
      {[&](Variant& v) {
         v.find("transformer.h.0.attn.c_attn.weight").tensor = values({72, 20});
       },
       "expected shape [24, 72] (in, out), found [72, 20]"},
      {[&](Variant& v) {
         v.tensors.push_back({"score.weight", values({2, 24})});
       },
       "holds a tensor score.weight"},
      {[&](Variant& v) {
         v.tensors.push_back({"lm_head.weight", values({61, 24})});
       },
       "lm_head.weight differs from transformer.wte.weight"},
      {[&](Variant& v) {
         v.find("transformer.ln_f.bias").tensor = tensor(static_cast<const void*>(zeros.data()), DType::int32, {24});
       },
       "expected dtype fp32, bf16 or fp16, found int32"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.part);
    Variant variant;
    c.change(variant);
    const std::string path = variant.write(folder / "hf");
    const std::string error = error_of([&] { read_hf_model(path); });
    CAPTURE(error);
    CHECK(error.rfind("1: " + path + "/", 0) == 0);
    CHECK(contains(error, c.part));
  }
}

TEST_CASE("Hugging Face: folders without one of their files, and files of something else") {
  const TemporaryFolder folder;
  const std::string hf = Variant().write(folder / "hf");
  const auto error = [&] { return error_of([&] { read_hf_model(hf); }); };
  for (const char* text : {"", "[]", "{", "\xff\xfe", "{\"n_layer\": 2", "12"}) {
    CAPTURE(text);
    write_file(hf + "/config.json", text);
    CHECK(error() == "1: " + hf + "/config.json: is not a JSON object");
  }
  write_file(hf + "/config.json", std::string(100000, '['));
  CHECK(contains(error(), "is not a JSON object"));
  std::string config = read_file(fixture + "/config.json");
  const std::size_t value = config.find(':', config.find("\"n_layer\"")) + 1;
  config.replace(value, config.find_first_of(",}\n", value) - value, deep_list());
  write_file(hf + "/config.json", config);
  CHECK(contains(error(), "config.json: n_layer: expected a whole number from 1 to 65536, found a list"));
  write_file(hf + "/config.json", std::string(2 << 20, ' '));
  CHECK(contains(error(), "expected at most 1048576 bytes, found 2097152"));

  Variant().write(hf);
  write_file(hf + "/model.safetensors", read_file(fixture + "/model.safetensors").substr(0, 40000));
  CHECK(contains(error(), "bad safetensors file"));
  std::filesystem::remove(hf + "/model.safetensors");
  CHECK(error() == "1: " + hf + ": holds no model.safetensors");
  write_file(hf + "/pytorch_model.bin", "x");
  CHECK(contains(error(), "found pytorch_model.bin"));
  std::filesystem::remove(hf + "/config.json");
  CHECK(contains(error(), hf + "/config.json"));
}

TEST_CASE("Hugging Face: damaged files are refused, or say something else that fits") {
  const TemporaryFolder folder;
  const std::string config = read_file(fixture + "/config.json"), weights = read_file(fixture + "/model.safetensors");
  std::uint64_t header_bytes;
  std::memcpy(&header_bytes, weights.data(), sizeof header_bytes);
  std::filesystem::create_directories(folder / "hf");
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    const bool in_config = seed % 2 == 0;
    write_file(folder / "hf/config.json", in_config ? damaged(config, config.size(), seed) : config);
    write_file(folder / "hf/model.safetensors", in_config ? weights : damaged(weights, 8 + header_bytes, seed));
    const std::string error = error_of([&] { sum_of(read_hf_model(folder / "hf")); });
    CAPTURE(error);
    CHECK((error == "no error" || error.rfind("1: " + (folder / "hf/"), 0) == 0));
    refused += error != "no error";
  }
  CHECK(refused > 100);
}
