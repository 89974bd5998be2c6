#include <doctest/doctest.h>
#include <greyhound/train/find_files.h>
#include <greyhound/train/loader.h>
#include <greyhound/train/synthetic_data.h>
#include <greyhound/train/text_data.h>

#include "test_files.h"

#include <sys/stat.h>

#include <string>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

// A configuration with rows of 8 tokens, 2 rows a step.
Config make_config(const std::string& train, const std::string& val = "") {
  Config config = default_config();
  config.model.block_size = 8;
  config.train.micro_batch = 2;
  config.data.train = train;
  config.data.val = val;
  return config;
}

RunData open(const Config& config) {
  return open_data(config, plan_batch(config.train.micro_batch, 0, config.model.block_size, 1), 0);
}

std::string open_error(const Config& config) {
  return error_of([&] { open(config); });
}

std::string alphabet(std::size_t length) {
  std::string text;
  for (std::size_t i = 0; i < length; ++i) text += static_cast<char>('a' + i % 26);
  return text;
}

}  // namespace

TEST_CASE("data: the files of a glob are sorted by name; a name that exists is no glob") {
  const TemporaryFolder folder;
  for (const char* name : {"b_10.bin", "a.bin", "b_09.bin", "c.txt", "B.bin"}) write_file(folder / name, "x");
  write_file(folder / "d[1].txt", "x");
  CHECK(find_files("data.train", folder / "*.bin") ==
        std::vector<std::string>{folder / "B.bin", folder / "a.bin", folder / "b_09.bin", folder / "b_10.bin"});
  CHECK(find_files("data.train", folder / "d[1].txt") == std::vector<std::string>{folder / "d[1].txt"});
  CHECK(contains(error_of([&] { find_files("data.val", folder / "x*"); }), "2: data.val: no file matches"));
  CHECK(contains(error_of([&] { find_files("data.val", folder.path()); }), "is a folder; a glob such as"));
  // Each command names what it takes.
  CHECK(contains(error_of([&] { find_files("data.val", folder / "x*"); }), "or `synthetic`"));
  CHECK(!contains(error_of([&] { find_files("--data", folder / "x*"); }), "synthetic"));
  CHECK(contains(error_of([&] { find_files("--data", folder / "x*"); }), "token shards"));
  CHECK(!contains(error_of([&] { find_files("tokenize", folder / "x*"); }), "shards"));
  REQUIRE(mkfifo((folder / "pipe.txt").c_str(), 0600) == 0);
  CHECK(contains(error_of([&] { find_files("data.val", folder / "p*.txt"); }), "pipe.txt is not a regular file"));
}

TEST_CASE("data: a missing file names the command that makes it") {
  const TemporaryFolder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  CHECK(open_error(make_config("data/austen.txt")) ==
        "2: data.train: data/austen.txt is missing; make it with: scripts/get_data austen");
  CHECK(open_error(make_config("./data/tinyshakespeare.txt")) ==
        "2: data.train: ./data/tinyshakespeare.txt is missing; make it with: scripts/get_data shakespeare");
  CHECK(contains(open_error(make_config("data/other.txt")), "2: data.train: no file matches data/other.txt (in "));
  std::filesystem::current_path(before);
}

TEST_CASE("data: text holds out its end, and takes the data's vocabulary") {
  const TemporaryFolder folder;
  const std::string path = write_file(folder / "a.txt", alphabet(1000));
  Config config = make_config(path);
  RunData data = open(config);
  CHECK(data.vocab_size == 256);
  CHECK(data.tokenizer.kind() == TokenizerKind::byte);
  CHECK(data.warnings.empty());
  CHECK(contains(data.description, "text, 900 training tokens, 100 held out, 256 byte values"));
  REQUIRE(data.validation);
  CHECK(data.validation->total_rows() == 12);  // (100 - 1) / 8
  // The first held-out token is number 900.
  CHECK(data.validation->batch(0).tokens.as<std::int32_t>()[0] == 'a' + 900 % 26);

  config.data.tokenizer = "char";
  data = open(config);
  CHECK(data.vocab_size == 26);
  CHECK(data.validation->batch(0).tokens.as<std::int32_t>()[0] == 900 % 26);

  config.model.vocab_size = 30;
  CHECK(open(config).vocab_size == 30);
  config.model.vocab_size = 25;
  CHECK(contains(open_error(config), "2: model.vocab_size 25 is less than the 26 tokens of"));
  config.model.vocab_size = 0;
  config.data.ignore_token = 26;
  CHECK(contains(open_error(config), "2: data.ignore_token 26 is not a token id below 26"));
}

TEST_CASE("data: training never sees what is held out") {
  const TemporaryFolder folder;
  const std::string path = write_file(folder / "a.txt", std::string(300, 'a') + std::string(100, 'b'));
  Config config = make_config(path);
  config.data.val_fraction = 0.25;
  RunData data = open(config);
  for (int step = 0; step < 200; ++step) {
    const HostBatch batch = data.train->next();
    for (std::int64_t i = 0; i < batch.targets.elements(); ++i) CHECK(batch.targets.as<std::int32_t>()[i] == 'a');
  }
  for (std::int64_t i = 0; i < data.validation->size(); ++i) {
    CHECK(data.validation->batch(i).tokens.as<std::int32_t>()[0] == 'b');
  }
}

TEST_CASE("data: characters of several bytes are addressed by number") {
  const TemporaryFolder folder;
  const char* alphabet[] = {"a", "é", "日", "\U0001F409", "\n"};
  std::string text;
  std::vector<int> symbols;
  for (int i = 0; i < 3000; ++i) {
    symbols.push_back((i * i + i / 7) % 5);
    text += alphabet[symbols.back()];
  }
  const std::string path = write_file(folder / "a.txt", text);
  const Tokenizer tokenizer = Tokenizer::characters(collect_symbols({path}));
  const int token_of[] = {1, 2, 3, 4, 0};
  const TextFile file(path, tokenizer);
  CHECK(file.tokens() == 3000);
  std::vector<std::int32_t> window(9);
  for (std::int64_t first = 0; first + 9 <= 3000; first += 13) {
    file.read(first, window);
    for (std::size_t i = 0; i < window.size(); ++i) {
      REQUIRE(window[i] == token_of[symbols[static_cast<std::size_t>(first) + i]]);
    }
  }
  CHECK(contains(error_of([&] { file.read(2992, window); }), "tokens 2992 to 3001 of 3000"));

  Config config = make_config(path);
  config.data.tokenizer = "char";
  CHECK(open(config).vocab_size == 5);
}

TEST_CASE("data: several texts, and a text for evaluation") {
  const TemporaryFolder folder;
  write_file(folder / "1.txt", std::string(100, 'a'));
  write_file(folder / "2.txt", std::string(50, 'b'));
  const std::string val = write_file(folder / "val", std::string(33, 'z'));
  Config config = make_config(folder / "*.txt", val);
  config.data.tokenizer = "char";
  RunData data = open(config);
  CHECK(data.vocab_size == 3);  // the evaluation's characters as well
  CHECK(contains(data.description, "150 training tokens, 33 held out"));
  CHECK(data.validation->total_rows() == 4);
  bool seen[3] = {};
  for (int step = 0; step < 40; ++step) {
    const HostBatch batch = data.train->next();
    for (std::int64_t row = 0; row < batch.rows; ++row) {
      // A row comes from one file.
      const std::int32_t* tokens = batch.tokens.row<std::int32_t>(row);
      for (std::int64_t t = 1; t < 8; ++t) CHECK(tokens[t] == tokens[0]);
      seen[tokens[0]] = true;
    }
  }
  CHECK(seen[0]);
  CHECK(seen[1]);
  CHECK_FALSE(seen[2]);
}

TEST_CASE("data: text that cannot be used is one clear line") {
  const TemporaryFolder folder;
  const std::string path = folder / "a.txt";
  write_file(path, "");
  CHECK(open_error(make_config(path)) == "1: " + path + ": expected text, found an empty file");

  write_file(path, alphabet(8));
  Config config = make_config(path);
  config.data.val_fraction = 0;
  CHECK(
      contains(open_error(config), "2: data.train: " + path + " has 8 tokens for training, fewer than the 9 of a row"));
  write_file(path, alphabet(9));
  RunData data = open(config);
  CHECK_FALSE(data.validation);
  REQUIRE(data.warnings.size() == 2);
  CHECK(contains(data.warnings[0], "only 1 row of 8 tokens, a step takes 2"));
  CHECK(contains(data.warnings[1], "no evaluation"));

  write_file(path, alphabet(50));  // holds out 5
  data = open(make_config(path));
  CHECK_FALSE(data.validation);
  REQUIRE(data.warnings.size() == 2);
  CHECK(contains(data.warnings[0], "holds out 5 tokens, fewer than the 9 of a row"));

  write_file(path, "ab\ncd\xFF" + alphabet(50));
  config = make_config(path);
  CHECK_NOTHROW(open(config));  // bytes take anything
  config.data.tokenizer = "char";
  CHECK(contains(open_error(config), "1: " + path + ": expected UTF-8, found the byte 255 at byte 5 (line 2)"));
  write_file(path, alphabet(50) + "\xE6\x97");
  CHECK(contains(open_error(config), "found the byte 230 at byte 50"));

  const std::string val = write_file(folder / "val.txt", "short");
  write_file(path, alphabet(50));
  CHECK(
      contains(open_error(make_config(path, val)), "2: data.val: " + val + " holds fewer than the 9 tokens of a row"));
  CHECK(contains(open_error(make_config(path, folder / "none")), "2: data.val: no file matches"));
}

TEST_CASE("data: the tokenizer of an existing run is kept") {
  const TemporaryFolder folder;
  const std::string path = write_file(folder / "a.txt", alphabet(300));
  Config config = make_config(path);
  config.data.tokenizer = "char";
  const BatchPlan plan = plan_batch(2, 0, 8, 1);
  const Tokenizer larger = Tokenizer::characters(collect_symbols({write_file(folder / "b.txt", alphabet(26) + "é")}));
  CHECK(open_data(config, plan, 0, &larger).vocab_size == 27);
  const Tokenizer smaller = Tokenizer::characters({'a', 'b'});
  CHECK(contains(error_of([&] { open_data(config, plan, 0, &smaller); }),
                 "1: " + path + ": the character 'c' at byte 2 is not among the 2 characters"));
  const std::string zero = write_file(folder / "zero.txt", std::string("ab\0", 3));
  CHECK(
      contains(error_of([&] { open_data(make_config(zero), plan, 0, &smaller); }), "the character '\\x00' at byte 2"));
  const Tokenizer ids = Tokenizer::ids(100);
  CHECK(contains(error_of([&] { open_data(config, plan, 0, &ids); }), "was trained on token ids"));
}

TEST_CASE("data: token shards: short ones are skipped with a warning, none left is an error") {
  const TemporaryFolder folder;
  write_file(folder / "train_0.bin", shard_bytes(std::vector<std::uint16_t>(100, 1)));
  write_file(folder / "train_1.bin", shard_bytes(std::vector<std::uint16_t>(17, 2)));  // exactly one step
  const std::string last = write_file(folder / "train_2.bin", shard_bytes(std::vector<std::uint16_t>(16, 3)));
  const std::string val = write_file(folder / "val_0.bin", shard_bytes(std::vector<std::uint16_t>(9, 4)));
  Config config = make_config(folder / "train_*.bin", val);
  RunData data = open(config);
  REQUIRE(data.warnings.size() == 1);
  CHECK(data.warnings[0] == last + ": skipped, its 16 tokens are fewer than the 17 of a step");
  CHECK(data.vocab_size == 50257);
  CHECK(data.tokenizer.kind() == TokenizerKind::ids);
  CHECK(data.validation->total_rows() == 1);
  for (int step = 0; step < 7; ++step) data.train->next();  // 6 steps of the first shard, 1 of the second
  CHECK(data.train->epoch() == 1.0);

  config = make_config(last);
  CHECK(contains(open_error(config), "2: data.train: none of the 1 token shards holds the 17 tokens of a step"));
  config.data.train = folder / "train_*.bin";
  data = open(config);  // without data.val there is no evaluation
  CHECK_FALSE(data.validation);
  CHECK(contains(data.warnings.back(), "no evaluation"));

  write_file(folder / "train_1.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n");
  CHECK(contains(open_error(config), "1: " + (folder / "train_1.bin") + ": expected a token shard"));
}

TEST_CASE("data: kinds are not mixed, and 32-bit shards need a vocabulary") {
  const TemporaryFolder folder;
  const std::string shard = write_file(folder / "a.bin", counting_shard(100));
  const std::string text = write_file(folder / "a.txt", alphabet(100));
  CHECK(contains(open_error(make_config(folder / "a.*")), text + " is text, but " + shard + " is a token shard"));
  CHECK(contains(open_error(make_config(shard, text)), shard + " is a token shard, but " + text + " is text"));
  CHECK(contains(open_error(make_config(text, shard)), text + " is text, but " + shard + " is a token shard"));
  CHECK(contains(open_error(make_config(shard)), "2: model.vocab_size: the token shards have 32-bit ids"));
  Config config = make_config(shard);
  config.model.vocab_size = 100;
  CHECK(open(config).vocab_size == 100);
  // A shard is known by its contents, too.
  const std::string named = write_file(folder / "tokens", counting_shard(100));
  config.data.train = named;
  CHECK(open(config).tokenizer.kind() == TokenizerKind::ids);
}

TEST_CASE("data: synthetic tokens are the same in every run, and there is something to learn") {
  Config config = make_config("synthetic");
  config.model.vocab_size = 50;
  RunData data = open(config), again = open(config);
  config.run.seed = 2;
  RunData other = open(config);
  std::int64_t small = 0, repeats = 0, count = 0, same_as_other = 0;
  for (int step = 0; step < 500; ++step) {
    const HostBatch batch = data.train->next(), repeat = again.train->next(), differs = other.train->next();
    for (std::int64_t i = 0; i < batch.tokens.elements(); ++i) {
      const std::int32_t token = batch.tokens.as<std::int32_t>()[i];
      REQUIRE(token == repeat.tokens.as<std::int32_t>()[i]);
      small += token < 25;
      repeats += token == batch.targets.as<std::int32_t>()[i];
      same_as_other += token == differs.tokens.as<std::int32_t>()[i];
      ++count;
    }
  }
  CHECK(static_cast<double>(small) / count > 0.7);  // (1/2)^(1/3) = 0.79
  CHECK(static_cast<double>(repeats) / count > 0.5);
  CHECK(static_cast<double>(same_as_other) / count < 0.3);
  CHECK(data.train->epoch() == 0);
  REQUIRE(data.validation);
  CHECK(data.validation->total_rows() == 40);  // 20 batches of 2 rows

  config.model.vocab_size = 0;
  CHECK(contains(open_error(config), "2: data.train: synthetic needs model.vocab_size"));
}
