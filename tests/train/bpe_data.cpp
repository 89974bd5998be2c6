// BPE from data to samples: text and shards with a tokenizer, the loader, the program.
#include <doctest/doctest.h>
#include <greyhound/train/loader.h>
#include <greyhound/train/shard_writer.h>
#include <sys/wait.h>

#include "test_files.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

using Ids = std::vector<std::int32_t>;

const std::string tokenizer_path = GREYHOUND_SOURCE_DIR "/tests/train/data/bpe_tokenizer.json";

const Tokenizer& bpe() {
  static const Tokenizer made = Tokenizer::bpe(BpeVocabulary::load(tokenizer_path));
  return made;
}

// A folder whose cache is its own.
struct Folder : TemporaryFolder {
  const Variable cache{"GREYHOUND_CACHE", *this / "cache"};
};

std::string prose(int sentences) {
  std::string text;
  for (int i = 0; i < sentences; ++i)
    text += "The hound runs over hill " + std::to_string(i * 7919 % 1000) + ". It's grey;\n";
  return text;
}

Config make_config(const std::string& train, const std::string& tokenizer = tokenizer_path) {
  Config config = default_config();
  config.model.block_size = 8;
  config.train.micro_batch = 2;
  config.data.train = train;
  config.data.tokenizer = tokenizer;
  return config;
}

RunData open(const Config& config, const Tokenizer* stored = nullptr) {
  return open_data(config, plan_batch(config.train.micro_batch, 0, config.model.block_size, 1), 0, stored);
}

std::string open_error(const Config& config) {
  return error_of([&] { open(config); });
}

struct Outcome {
  int exit_code;
  std::string out;
};

// Runs the program with these words of a shell; errors come with the output.
Outcome program(const std::string& words) {
  FILE* pipe = ::popen(("'" GREYHOUND_PROGRAM "' " + words + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  Outcome outcome;
  char block[4096];
  for (std::size_t count; (count = std::fread(block, 1, sizeof block, pipe)) > 0;) outcome.out.append(block, count);
  outcome.exit_code = WEXITSTATUS(::pclose(pipe));
  return outcome;
}

}  // namespace

TEST_CASE("bpe data: text is tokenized once, and its end held out") {
  const Folder folder;
  const std::string text = prose(300), path = write_file(folder / "a.txt", text);
  Ids ids = {bpe().end_of_text()};
  for (const std::int32_t id : bpe().encode(text)) ids.push_back(id);
  Config config = make_config(path);
  config.eval.batches = 0;
  RunData data = open(config);
  CHECK(data.tokenizer.kind() == TokenizerKind::bpe);
  CHECK(data.vocab_size == 1200);
  CHECK(contains(data.description, "held out, 1,200 BPE tokens"));
  REQUIRE(data.validation);
  const std::size_t held_out = ids.size() / 10, first = ids.size() - held_out;
  CHECK(data.validation->total_rows() == static_cast<std::int64_t>((held_out - 1) / 8));
  const HostBatch batch = data.validation->batch(0);
  CHECK(Ids(batch.tokens.as<std::int32_t>(), batch.tokens.as<std::int32_t>() + 8) ==
        Ids(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.begin() + static_cast<std::ptrdiff_t>(first) + 8));
  // Training rows are pieces of the text.
  for (int step = 0; step < 20; ++step) {
    const HostBatch rows = data.train->next();
    const std::int32_t* row = rows.tokens.row<std::int32_t>(0);
    CHECK(std::search(ids.begin(), ids.end(), row, row + 8) != ids.end());
  }

  config.model.vocab_size = 1199;
  CHECK(contains(open_error(config), "2: model.vocab_size 1199 is less than the 1200 tokens"));
  config.model.init_from = "runs/small";
  CHECK(contains(open_error(config),
                 "2: model.init_from: the model of runs/small has 1,199 tokens, the tokenizer of " + path + " 1,200"));
  CHECK(contains(open_error(make_config(path, "bpe")), "2: data.tokenizer: expected byte, char, or the path"));
  write_file(folder / "b.jsonl", "{\"text\": \"" + std::string(100, 'x') + "\"}");
  CHECK(contains(open(make_config(folder / "b.jsonl")).description, "training tokens"));
}

TEST_CASE("bpe data: shards come with the tokenizer beside them") {
  const Folder folder;
  ShardWriter writer(folder.path(), "train", 4, 1000);
  writer.append(bpe().encode(prose(100)));
  writer.finish();
  Config config = make_config(folder / "train_*.bin", "byte");
  CHECK(contains(open_error(config), "2: model.vocab_size: the token shards have 32-bit ids"));
  bpe().save(folder / "tokenizer.json");
  RunData data = open(config);
  CHECK(data.tokenizer.kind() == TokenizerKind::bpe);
  CHECK(data.vocab_size == 1200);
  CHECK(contains(data.description, "with their tokenizer"));

  // One that is something else is passed over with a warning; the configuration's goes first.
  write_file(folder / "tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
  config.model.vocab_size = 2000;
  data = open(config);
  CHECK(data.tokenizer.kind() == TokenizerKind::ids);
  CHECK(contains(data.warnings.front(), "the tokenizer beside the shards is not used: "));
  CHECK(contains(data.warnings.front(), "model.type is \"Unigram\""));
  config.data.tokenizer = tokenizer_path;
  CHECK(open(config).tokenizer.kind() == TokenizerKind::bpe);
  CHECK(contains(open(config).description, ", tokenizer " + tokenizer_path));
  CHECK(!contains(open(config).description, "with their tokenizer"));
  config.data.tokenizer = "byte";
  CHECK(open(config, &bpe()).tokenizer.kind() == TokenizerKind::bpe);
}

TEST_CASE("bpe data: all of a text or of shards is evaluated") {
  const Folder folder;
  const std::string path = write_file(folder / "a.txt", prose(20));
  Config config = make_config(path);
  config.model.vocab_size = 1200;
  config.eval.batches = 0;
  const BatchPlan plan = plan_batch(2, 0, 8, 1);
  const std::int64_t tokens = static_cast<std::int64_t>(bpe().encode(prose(20)).size()) + 1;
  CHECK(open_evaluation(config, plan, path, bpe()).validation->total_rows() == (tokens - 1) / 8);
  const std::string shard = write_file(folder / "a.bin", shard_bytes(std::vector<std::uint16_t>(30, 7)));
  CHECK(open_evaluation(config, plan, shard, bpe()).validation->total_rows() == 3);
  const auto error = [&](const std::string& data) {
    return error_of([&] { open_evaluation(config, plan, data, bpe()); });
  };
  CHECK(contains(error(write_file(folder / "b.txt", "a")),
                 "2: --data: " + (folder / "b.txt") + " holds fewer than the 9"));
  CHECK(contains(error(folder / "none"), "2: --data: no file matches"));
  // Text with a run of bare ids has no tokenizer.
  CHECK(contains(error_of([&] { open_evaluation(config, plan, path, Tokenizer::ids(1200)); }), "trained on token ids"));
}

TEST_CASE("bpe data: tokenize, train, sample and evaluate with the program") {
  const Folder folder;
  const std::string text = write_file(folder / "a.txt", prose(400)), data = folder / "data", run = folder / "run";
  Outcome outcome = program("tokenize --tokenizer '" + tokenizer_path + "' --out '" + data + "' '" + text + "'");
  CAPTURE(outcome.out);
  REQUIRE(outcome.exit_code == 0);
  CHECK(contains(outcome.out, "for training, "));
  CHECK(contains(outcome.out, "data.train=" + data + "/train_*.bin data.val=" + data + "/val_*.bin"));
  const std::string config = write_file(folder / "c.yaml", R"(
model: {n_layer: 1, n_head: 2, n_embd: 16, block_size: 16}
optimizer: {lr: 1e-2}
train: {micro_batch: 4, max_steps: 10}
eval: {every: 0, batches: 0}
)");
  outcome = program("train '" + config + "' run.dir='" + run + "' 'data.train=" + data +
                    "/train_*.bin' 'data.val=" + data + "/val_*.bin'");
  CAPTURE(outcome.out);
  REQUIRE(outcome.exit_code == 0);
  CHECK(contains(outcome.out, "vocabulary 1200 "));
  CHECK(Tokenizer::load(run + "/tokenizer.json").encode("hound") == bpe().encode("hound"));

  // The run's own tokenizer is enough.
  std::filesystem::remove(data + "/tokenizer.json");
  outcome = program("sample '" + run + "' --prompt 'The hound' --tokens 30 --seed 3");
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.out.rfind("The hound", 0) == 0);
  CHECK(outcome.out == program("sample '" + run + "' --prompt 'The hound' --tokens 30 --seed 3").out);
  CHECK(program("sample '" + run + "' --tokens 3").exit_code == 0);

  const Outcome held_out = program("eval '" + run + "'");
  CHECK(contains(held_out.out, "validation loss "));
  outcome = program("eval '" + run + "' --data '" + data + "/val_000000.bin'");
  const auto numbers = [](const std::string& line) { return line.substr(line.find(" loss ")); };
  CAPTURE(outcome.out);
  CHECK(numbers(outcome.out) == numbers(held_out.out));
  const std::string other = write_file(folder / "other.txt", "Bühne frei: 12345 67890 !? " + prose(3));
  outcome = program("eval '" + run + "' --data '" + other + "'");
  CAPTURE(outcome.out);
  CHECK(outcome.exit_code == 0);
  CHECK(contains(outcome.out, "on " + other + ": loss "));
  CHECK(contains(outcome.out, "perplexity "));
  outcome = program("tokenize --tokenizer '" + (folder / "none") + "' --out '" + data + "' '" + text + "'");
  CHECK(outcome.exit_code == 2);
  CHECK(contains(outcome.out, "greyhound: error: tokenizer " + (folder / "none")));
  for (const char* option : {"--val-fraction 1", "--val-fraction nan", "--shard-tokens 0", "--shard-tokens 2147483648",
                             "--threads -1", "--threads 99999999999999999999"}) {
    CAPTURE(option);
    CHECK(program("tokenize --tokenizer t --out o f " + std::string(option)).exit_code == 2);
  }
}

TEST_CASE("bpe data: only completions are learnt, in training and in evaluation") {
  const Folder folder;
  std::string lines;
  for (int i = 0; i < 60; ++i) {
    lines += "{\"prompt\": \"" + std::to_string(i * 7919 % 1000) + " is \", \"completion\": \"" + "odd" + "\"}\n";
  }
  const std::string data = write_file(folder / "a.jsonl", lines), run = folder / "run";
  const std::string config = write_file(folder / "c.yaml", R"(
model: {n_layer: 1, n_head: 2, n_embd: 32, block_size: 12}
optimizer: {lr: 1e-2}
train: {micro_batch: 8, max_steps: 100}
eval: {every: 0, batches: 0}
)");
  Outcome outcome = program("train '" + config + "' run.dir='" + run + "' data.train='" + data + "' data.tokenizer='" +
                            tokenizer_path + "'");
  CAPTURE(outcome.out);
  REQUIRE(outcome.exit_code == 0);
  CHECK(contains(outcome.out, "54 examples for training, 6 held out"));
  // The answer is always the same, the question cannot be told: a loss near 0 is one of the answers alone.
  outcome = program("eval '" + run + "'");
  const std::size_t at = outcome.out.find(" loss ");
  REQUIRE(at != std::string::npos);
  CHECK(std::stod(outcome.out.substr(at + 6)) < 0.1);
  CHECK(contains(program("sample '" + run + "' --prompt '123 is ' --tokens 4 --temperature 0").out,
                 "123 is odd<|endoftext|>"));
}
