// model.init_from and the export command.
#include "stored_model.h"

#include <doctest/doctest.h>
#include <greyhound/train/commands.h>
#include <greyhound/train/hf_model_folder.h>
#include <greyhound/train/llmc_model_file.h>
#include <greyhound/train/safetensors.h>
#include <greyhound/train/stored_run.h>
#include <nlohmann/json.hpp>

#include <cmath>

using namespace greyhound;
using namespace greyhound::testing;
namespace fs = std::filesystem;

namespace {

// A configuration that leaves the model to init_from.
Config from(const std::string& path, const std::vector<std::string>& overrides = {}) {
  return parse_config(R"(
run: {dir: unused, device: cpu}
data: {train: synthetic, val: synthetic}
train: {micro_batch: 2}
model: {init_from: ")" + path +
                          "\"}\n",
                      "start.yaml", overrides, complete_model_section);
}

std::string refusal(const std::string& path, const std::vector<std::string>& overrides = {}) {
  return error_of([&] { from(path, overrides); });
}

// The weights that a model of `config` shares with one of another padding: parameter by parameter, logical rows.
bool same_parameters(const Config& a, const Config& b) {
  const ToyRun first(a), second(b);
  for (const Parameter& parameter : first.buffers.model.parameters().all()) {
    const Parameter& other = second.buffers.model.parameters()[parameter.name];
    const std::int64_t count = parameter.logical_rows * parameter.shape.columns();
    const float* left = first.buffers.optimizer.weights().as<float>() + parameter.offset;
    const float* right = second.buffers.optimizer.weights().as<float>() + other.offset;
    if (std::memcmp(left, right, static_cast<std::size_t>(count) * sizeof(float)) != 0) return false;
  }
  return true;
}

ExportOptions to(const std::string& format, const std::string& run, const std::string& out,
                 const std::string& dtype = "fp32") {
  return {run, out, format, dtype};
}

}  // namespace

TEST_CASE("init_from: a run, and what it is exported to, give the same weights to the bit") {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  const std::vector<float> weights = make_run(run);
  export_command(to("hf", run, folder / "hf"));
  export_command(to("llmc", run, folder / "model.bin"));
  export_command(to("llmc", run, folder / "a/new/folder/model.bin"));
  CHECK(read_file(folder / "a/new/folder/model.bin") == read_file(folder / "model.bin"));
  for (const std::string& path : {run, folder / "hf", folder / "model.bin"}) {
    CAPTURE(path);
    const Config config = from(path, {"model.vocab_multiple=8"});
    CHECK(config.model.n_layer == 2);
    CHECK(config.model.n_head == 3);
    CHECK(config.model.n_embd == 12);
    CHECK(config.model.block_size == 9);
    CHECK(config.model.vocab_size == 17);
    CHECK(config.model.bias);
    CHECK(config.model.tie_embeddings);
    CHECK(config.model.dropout == 0);  // not the run's: it is no property of the weights
    CHECK(same_bits(initial_weights(config), weights));
    // Padding is the trainer's own business.
    CHECK(same_parameters(config, from(path, {"model.vocab_multiple=64"})));
  }
  // Round again: what was imported is exported to the same bytes.
  write_llmc_model(folder / "again.bin", open_model(folder / "hf"), DType::fp32);
  CHECK(read_file(folder / "again.bin") == read_file(folder / "model.bin"));
  write_hf_model(folder / "again", open_model(folder / "model.bin"), DType::fp32, 0.1);
  CHECK(read_file(folder / "again/model.safetensors") == read_file(folder / "hf/model.safetensors"));
}

TEST_CASE("init_from: models without biases or with a head of their own start from runs") {
  const TemporaryFolder folder;
  const std::vector<std::string> overrides = {"model.bias=false", "model.tie_embeddings=false"};
  const std::vector<float> weights = make_run(folder / "run", overrides);
  const Config config = from(folder / "run", {"model.vocab_multiple=8"});
  CHECK_FALSE(config.model.bias);
  CHECK_FALSE(config.model.tie_embeddings);
  CHECK(same_bits(initial_weights(config), weights));
}

TEST_CASE("init_from: weights in bf16 are those of the file, and computed with") {
  const TemporaryFolder folder;
  make_run(folder / "run");
  export_command(to("llmc", folder / "run", folder / "half.bin", "bf16"));
  export_command(to("hf", folder / "run", folder / "half", "bf16"));
  const std::vector<float> weights = initial_weights(from(folder / "half.bin"));
  CHECK(same_bits(initial_weights(from(folder / "half")), weights));
  for (const float value : weights) CHECK(to_float(from_float<bf16>(value)) == value);

  const ToyRun toy_run(from(folder / "half.bin", {"run.precision=bf16"}));
  CHECK(same_bits(toy_run.weights(), weights));
  const bf16* working = toy_run.buffers.optimizer.working_weights().as<bf16>();
  bool equal = true;
  for (std::size_t i = 0; i < weights.size(); ++i) equal = equal && to_float(working[i]) == weights[i];
  CHECK(equal);
}

TEST_CASE("init_from: keys may agree, and every difference is named in one error") {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  make_run(run);
  CHECK(refusal(run, {"model.n_layer=2", "model.n_embd=12", "model.vocab_size=17", "model.bias=true"}) == "no error");
  CHECK(refusal(run, {"model.vocab_size=0"}) == "no error");
  CHECK(from(run, {"model.vocab_size=0"}).model.vocab_size == 17);

  const std::string error = refusal(run, {"model.n_layer=3", "model.n_head=4", "model.n_embd=16", "model.block_size=10",
                                          "model.vocab_size=18", "model.bias=false", "model.tie_embeddings=false"});
  CAPTURE(error);
  CHECK(error.rfind("2: ", 0) == 0);
  for (const char* part : {"model.n_layer is 3, the model's is 2", "model.n_head is 4, the model's is 3",
                           "model.n_embd is 16, the model's is 12", "model.block_size is 10, the model's is 9",
                           "model.vocab_size is 18, the model's is 17", "model.bias is false, the model's is true",
                           "model.tie_embeddings is false, the model's is true"}) {
    CAPTURE(part);
    CHECK(contains(error, part));
  }
  const std::string one = refusal(run, {"model.n_layer=3", "model.n_head=3"});
  CHECK(contains(one, "model.n_layer"));
  CHECK(!contains(one, "model.n_head"));
}

TEST_CASE("init_from: a smaller block_size takes the first positions") {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  make_run(run);
  const Config config = from(run, {"model.block_size=5"});
  CHECK(config.model.block_size == 5);
  const ToyRun shorter(config), whole(from(run));
  const auto view = [](const ToyRun& of, const std::string& name) {
    return of.buffers.optimizer.weights().as<float>() + of.buffers.model.parameters()[name].offset;
  };
  CHECK(std::memcmp(view(shorter, "wpe.weight"), view(whole, "wpe.weight"), 5 * 12 * sizeof(float)) == 0);
  CHECK(std::memcmp(view(shorter, "wte.weight"), view(whole, "wte.weight"), 17 * 12 * sizeof(float)) == 0);
}

TEST_CASE("init_from: trains on, with a fresh optimizer") {
  const TemporaryFolder folder;
  const std::vector<float> weights = make_run(folder / "run");
  ToyRun toy_run(from(folder / "run", {"model.vocab_multiple=8", "optimizer.lr=0"}));
  CHECK(toy_run.buffers.optimizer.updates(toy_run.context) == 0);
  toy_run.trainer->step();
  CHECK(same_bits(toy_run.weights(), weights));  // a learning rate of 0 changes nothing
  ToyRun moving(from(folder / "run", {"model.vocab_multiple=8", "optimizer.lr=0.01"}));
  moving.trainer->step();
  CHECK_FALSE(same_bits(moving.weights(), weights));
}

TEST_CASE("init_from: the tokenizer of a run goes with its weights") {
  const TemporaryFolder folder;
  make_run(folder / "bytes", {"model.vocab_size=256"}, Tokenizer::bytes());
  make_run(folder / "letters", {"model.vocab_size=17"}, Tokenizer::characters({U'a', U'b', U'c'}));
  CHECK(refusal(folder / "bytes") == "no error");
  const Config letters = from(folder / "letters");
  CHECK(initial_tokenizer(letters)->symbols() == std::vector<char32_t>{U'a', U'b', U'c'});
  CHECK(initial_tokenizer(from(folder / "bytes"))->kind() == TokenizerKind::byte);
  const std::string error = refusal(folder / "letters", {"data.tokenizer=byte"});
  CAPTURE(error);
  CHECK(contains(error, "data.tokenizer is byte, the model's is char"));
  make_run(folder / "ids");
  CHECK_FALSE(initial_tokenizer(from(folder / "ids", {"data.tokenizer=char"})).has_value());
  CHECK_FALSE(initial_tokenizer(toy()).has_value());
}

TEST_CASE("init_from: a BPE tokenizer beside the weights is taken, and exported with them") {
  const TemporaryFolder folder;
  const std::string bpe = std::string(GREYHOUND_SOURCE_DIR) + "/tests/train/data/bpe_tokenizer.json";
  const Tokenizer tokenizer = Tokenizer::bpe(BpeVocabulary::load(bpe));
  const std::string vocab_size = std::to_string(tokenizer.vocab_size());
  make_run(folder / "run", {"model.vocab_size=" + vocab_size, "data.tokenizer=" + bpe}, tokenizer);
  export_command(to("hf", folder / "run", folder / "hf"));
  CHECK(read_file(folder / "hf/tokenizer.json") == read_file(folder / "run/tokenizer.json"));
  CHECK(nlohmann::json::parse(read_file(folder / "hf/tokenizer_config.json"))["tokenizer_class"] == "GPT2Tokenizer");
  const nlohmann::json config = nlohmann::json::parse(read_file(folder / "hf/config.json"));
  CHECK(tokenizer.end_of_text() >= 0);
  CHECK(config["eos_token_id"] == tokenizer.end_of_text());
  CHECK(config["bos_token_id"] == tokenizer.end_of_text());
  for (const std::string& path : {folder / "run", folder / "hf"}) {
    CAPTURE(path);
    CHECK(from(path).data.tokenizer == path);
    CHECK(from(path, {"data.tokenizer=" + bpe}).data.tokenizer == bpe);
    CHECK(contains(refusal(path, {"data.tokenizer=byte"}), "data.tokenizer is byte, the model's is " + path));
  }
  export_command(to("llmc", folder / "run", folder / "model.bin"));
  CHECK(from(folder / "model.bin").data.tokenizer == "byte");  // the file does not say
}

TEST_CASE("init_from: what is no model is refused in one line that names it") {
  const TemporaryFolder folder;
  const auto check = [&](const std::string& path, const std::string& part, int exit_code) {
    const std::string error = refusal(path);
    CAPTURE(error);
    CHECK(error.rfind(std::to_string(exit_code) + ": ", 0) == 0);
    CHECK(contains(error, "model.init_from: "));
    CHECK(contains(error, path));
    CHECK(contains(error, part));
  };
  check(folder / "none", "does not exist", 2);
  fs::create_directories(folder / "empty");
  check(folder / "empty", "holds neither", 2);
  check(write_file(folder / "text.bin", "not a model"), "bad llm.c model", 1);
  make_run(folder / "run");
  fs::create_directories(folder / "both");
  write_file(folder / "both/config.yaml", "");
  write_file(folder / "both/config.json", "{}");
  check(folder / "both", "holds a config.yaml (a Greyhound run) and a config.json", 2);

  // A run whose weights are not those of its configuration.
  write_file(folder / "run/config.yaml", to_yaml(toy({"model.n_layer=3"})));
  check(folder / "run", "has no tensor h.2.", 1);
  write_file(folder / "run/config.yaml", to_yaml(toy({"model.n_layer=1"})));
  check(folder / "run", "holds a tensor h.1.", 1);
  fs::remove(folder / "run/tokenizer.json");
  check(folder / "run", "it holds no tokenizer.json", 2);

  make_run(folder / "same");
  CHECK(contains(refusal(folder / "same", {"run.dir=" + folder / "same"}), "are the same folder"));
}

TEST_CASE("init_from: a file of a folder is told the folder") {
  const TemporaryFolder folder;
  make_run(folder / "run");
  export_command(to("hf", folder / "run", folder / "hf"));
  for (const char* file : {"hf/model.safetensors", "hf/config.json", "run/model.safetensors", "run/config.yaml"}) {
    CAPTURE(file);
    const std::string path = folder / file, place = std::filesystem::path(path).parent_path().string();
    CHECK(refusal(path) == "2: model.init_from: " + path + ": is one file of a model: give the folder, " + place);
  }
}

TEST_CASE("init_from: weights that are not finite are refused with file and tensor") {
  const TemporaryFolder folder;
  make_run(folder / "run");
  const SafetensorsFile file(folder / "run/model.safetensors");
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<NamedTensor> tensors;
    std::vector<float> values;
    for (const std::string& name : file.names()) {
      tensors.push_back({name, file[name]});
      if (name != "h.1.mlp.c_fc.weight") continue;
      const ConstTensor& stored = tensors.back().tensor;
      values.assign(stored.as<float>(), stored.as<float>() + stored.elements());
      values[5] = bad;
      tensors.back().tensor = tensor(static_cast<const void*>(values.data()), DType::fp32, stored.shape);
    }
    const std::string path = folder / "bad";
    fs::create_directories(path);
    for (const char* name : {"config.yaml", "tokenizer.json"}) {
      fs::copy_file(folder / "run/" + name, path + "/" + name, fs::copy_options::overwrite_existing);
    }
    write_safetensors(path + "/model.safetensors", tensors);
    const std::string error = error_of([&] { initial_weights(from(path)); });
    CAPTURE(error);
    CHECK(contains(error, "1: " + path + "/model.safetensors: h.1.mlp.c_fc.weight: expected finite weights, found "));
    CHECK(contains(error, " at element 5"));
  }
}

TEST_CASE("init_from: a stored run is read without the model that it started from") {
  const TemporaryFolder folder;
  make_run(folder / "first");
  const Config config = from(folder / "first");
  make_run(folder / "second");
  write_file(folder / "second/config.yaml", to_yaml(config));
  fs::remove_all(folder / "first");
  CHECK(StoredRun(folder / "second").config().model.init_from == folder / "first");
}

TEST_CASE("export: models that GPT-2 cannot express, and places that are taken, are refused") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& format, const std::string& run, const std::string& out) {
    return error_of([&] { export_command(to(format, run, out)); });
  };
  make_run(folder / "plain", {"model.bias=false"});
  make_run(folder / "capped", {"loss.softcap=15"});
  make_run(folder / "untied", {"model.tie_embeddings=false"});
  for (const std::string format : {"hf", "llmc"}) {
    CAPTURE(format);
    CHECK(contains(refused(format, folder / "plain", folder / "out"), "model.bias"));
    CHECK(contains(refused(format, folder / "capped", folder / "out"), "loss.softcap 15"));
    CHECK(contains(refused(format, folder / "nothing", folder / "out"), "is not the folder of a run"));
  }
  CHECK(contains(refused("llmc", folder / "untied", folder / "out"), "model.tie_embeddings"));
  CHECK_FALSE(fs::exists(folder / "out"));
  CHECK(refused("hf", folder / "untied", folder / "out") == "no error");
  CHECK(same_parameters(from(folder / "untied"), from(folder / "out")));

  CHECK(contains(refused("hf", folder / "untied", folder / "out"), "config.json: is there already"));
  make_run(folder / "run");
  CHECK(contains(refused("hf", folder / "run", folder / "run"), "is there already"));
  CHECK(contains(refused("llmc", folder / "run", folder / "run/model.safetensors"), "is there already"));
  CHECK(contains(refused("llmc", folder / "run", folder / "run/config.yaml/model.bin"),
                 "run/config.yaml: the folder cannot be made"));
  const std::string file = write_file(folder / "file", "x");
  CHECK(contains(refused("hf", folder / "run", file + "/hf"), "the folder cannot be made"));
}
