// Writes the inputs that fuzzing starts from: make_seeds FOLDER. One folder per target, a few small valid files each.
#include <greyhound/train/checkpoint.h>
#include <greyhound/train/config.h>
#include <greyhound/train/content_hash.h>
#include <greyhound/train/file_io.h>
#include <greyhound/train/hf_model_folder.h>
#include <greyhound/train/mapped_file.h>
#include <greyhound/train/safetensors.h>
#include <greyhound/train/shard_writer.h>
#include <greyhound/train/tokenizer.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <vector>

using namespace greyhound;

namespace {

std::string make_folder(const std::string& folder, const std::string& target) {
  std::filesystem::create_directories(folder + "/" + target);
  return folder + "/" + target;
}

// The 256 bytes, "he" and <|endoftext|>.
std::string tiny_vocab_json() {
  std::string json = "{";
  for (int byte = 0; byte < 256; ++byte) {
    const std::string token = to_byte_alphabet(std::string(1, static_cast<char>(byte)));
    json += "\"" + std::string(token == "\"" || token == "\\" ? "\\" : "") + token + "\":" + std::to_string(byte) + ",";
  }
  return json + "\"he\":256,\"<|endoftext|>\":257}";
}

// config.json and model.safetensors of 1 layer, 1 head, 2 wide, 2 positions and 3 tokens, with a line between them.
void make_hf_seed(const std::string& path) {
  ModelFile model;
  model.sizes = {1, 1, 2, 2, 3, true, true};
  const std::vector<float> zeros(16);
  for_each_gpt2_tensor(model.sizes, [&](const Gpt2Tensor& kind, const std::string& name) {
    add_tensor(model, kind, name, {tensor(zeros.data(), DType::fp32, kind.shape(model.sizes)), false});
  });
  const std::string folder = path + ".folder";
  write_hf_model(folder, model, DType::fp32, 0);
  write_atomically(path, concat(MappedFile(folder + "/config.json").text(), "\n====\n",
                                MappedFile(folder + "/model.safetensors").text()));
  std::filesystem::remove_all(folder);
}

void make_seeds(const std::string& folder) {
  for (const int bytes : {2, 4}) {
    ShardFile shard(make_folder(folder, "token_shard") + "/" + std::to_string(8 * bytes), bytes);
    shard.append(std::vector<std::int32_t>{1, 2, 3, 50256, 5, 6, 7, 8, 9, 10, 11, 12, 13});
    shard.commit();
  }

  const float values[6] = {0, 1, -2, 3.5f, 1e-20f, 6};
  const std::vector<NamedTensor> tensors = {
      {"wte.weight", tensor(static_cast<const void*>(values), DType::fp32, {2, 3})},
      {"ln_f.bias", tensor(static_cast<const void*>(values), DType::bf16, {4})}};
  write_safetensors(make_folder(folder, "safetensors") + "/two", tensors, {{"step", "12"}});
  write_safetensors(make_folder(folder, "safetensors") + "/none", {});

  for (const std::int32_t version : {3, 5}) {  // 2 positions, 3 tokens padded to 4, 1 layer, 1 head, 2 wide
    std::vector<std::int32_t> model = {20240326, version, 2, 3, 1, 1, 2, 4};
    const std::size_t numbers = 4 * 2 + 2 * 2 + 12 * 2 * 2 + 13 * 2 + 2 * 2;
    model.resize(256 + numbers * (version == 3 ? 4 : 2) / 4);
    write_atomically(make_folder(folder, "llmc_model") + "/version" + std::to_string(version),
                     std::string(reinterpret_cast<const char*>(model.data()), model.size() * sizeof model[0]));
  }

  make_hf_seed(make_folder(folder, "hf_model") + "/tiny");

  const std::string vocab = tiny_vocab_json(), merges = "#version: 0.2\nh e\n";
  write_atomically(make_folder(folder, "bpe_merges") + "/tiny", vocab + "\n====\n" + merges);
  const std::string tokenizers = make_folder(folder, "tokenizer_json");
  write_atomically(tokenizers + "/tiny",
                   BpeVocabulary::parse_vocab_and_merges(vocab, "vocab", merges, "merges").to_tokenizer_json());
  Tokenizer::bytes().save(tokenizers + "/byte");
  Tokenizer::ids(50257).save(tokenizers + "/ids");
  write_atomically(tokenizers + "/ids_huge", "{\"kind\": \"ids\", \"vocab_size\": 5e66}");
  Tokenizer::characters({'\n', ' ', 'a', 0xE9}).save(tokenizers + "/char");

  const std::string texts = make_folder(folder, "bpe_text");
  write_atomically(texts + "/english", "I'm the hound; they've run 12  miles,\n\n it's late.\t ");
  write_atomically(texts + "/unicode", "naïve 日本語 \u3000\u00A0 e\u0301 \U0001F600 ٣٤ \xFF\xE6\x97 \xC3");

  const std::string configs = make_folder(folder, "config_yaml");
  write_atomically(configs + "/defaults", to_yaml(default_config()));
  write_atomically(configs + "/endless", ",@");  // documents without end, for yaml-cpp
  write_atomically(configs + "/flow", "model: {n_layer: 2, n_head: 3, n_embd: 12}\ndata: {train: a.txt} # c\n");

  CheckpointInfo info;
  info.step = 12;
  info.values = {{"integer", std::int64_t{-1}}, {"real", 0.5}, {"text", std::string("a")}};
  info.config = {{"model.n_layer", "2"}, {"optimizer.lr", "0.01"}, {"run.device", "\"cpu\""}};
  info.data = {{"a.txt", 100, "0123"}};
  info.tokenizer = "4567";
  write_atomically(make_folder(folder, "checkpoint") + "/state", to_json(info));
  const std::string sum = "{\"bytes\": 2, \"hash\": \"" + content_hash("{}") + "\"}";
  write_atomically(folder + "/checkpoint/manifest",
                   "{\"format\": 1, \"step\": 12, \"files\": {\"model.safetensors\": " + sum +
                       ", \"optimizer.safetensors\": " + sum + ", \"state.json\": " + sum + "}}");

  write_atomically(make_folder(folder, "completions") + "/three",
                   "{\"prompt\": \"ab\", \"completion\": \"c\"}\n\n{\"prompt\": \"\", \"completion\": \"\\u00e9\"}\n"
                   "{\"prompt\": \"abcdefghijk\", \"completion\": \"l\"}\n");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    require(argc == 2, "usage: make_seeds FOLDER");
    make_seeds(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_seeds: %s\n", error.what());
    return 1;
  }
}
