// Text to token shards: tokenize_files, shard_writer, the cache, and the command.
#include <doctest/doctest.h>
#include <greyhound/train/commands.h>
#include <greyhound/train/content_hash.h>
#include <greyhound/train/input_file.h>
#include <greyhound/train/shard_writer.h>
#include <greyhound/train/token_cache.h>
#include <greyhound/train/token_shards.h>
#include <greyhound/train/tokenize_files.h>
#include <nlohmann/json.hpp>

#include "test_files.h"

#include <cstdlib>
#include <set>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

using Ids = std::vector<std::int32_t>;

const std::string tokenizer_path = GREYHOUND_SOURCE_DIR "/tests/train/data/bpe_tokenizer.json";

const Tokenizer& tokenizer() {
  static const Tokenizer made = Tokenizer::bpe(BpeVocabulary::load(tokenizer_path));
  return made;
}

std::string prose(int sentences) {
  std::string text;
  for (int i = 0; i < sentences; ++i) {
    text += "The hound runs over hill " + std::to_string(std::int64_t{i} * 7919 % 1000) +
            (i % 5 == 0 ? ".\n\n" : ", naïve;  ");
  }
  return text;
}

struct Split {
  Ids train, held_out;
  bool operator==(const Split&) const = default;
};

Split tokenize(const std::vector<std::string>& paths, const TokenizeFilesOptions& options = {}) {
  Split split;
  tokenize_files(tokenizer(), paths, options, [&](bool held_out, std::span<const std::int32_t> tokens) {
    Ids& all = held_out ? split.held_out : split.train;
    all.insert(all.end(), tokens.begin(), tokens.end());
  });
  return split;
}

Ids with_end(const std::string& text) {
  Ids ids = {tokenizer().end_of_text()};
  for (const std::int32_t id : tokenizer().encode(text)) ids.push_back(id);
  return ids;
}

Ids ids_of(const std::string& path) {
  const TokenShard shard = read_shard_header(path);
  Ids ids(static_cast<std::size_t>(shard.tokens));
  read_shard_tokens(MappedFile(path), shard, 0, ids);
  return ids;
}

Ids joined(Ids first, const Ids& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

TEST_CASE("tokenize: long texts are the tokens of the whole, for any number of threads") {
  const TemporaryFolder folder;
  const std::string text = prose(120000);  // some chunks
  REQUIRE(text.size() > 3500000);
  const std::string path = write_file(folder / "a.txt", text), other = write_file(folder / "b.txt", "Short.");
  const Ids expected = joined(with_end(text), with_end("Short."));
  for (const int threads : {1, 2, 5}) {
    TokenizeFilesOptions options;
    options.threads = threads;
    std::int64_t last = 0;
    Ids found;
    tokenize_files(
        tokenizer(), {path, other}, options,
        [&](bool, std::span<const std::int32_t> tokens) { found.insert(found.end(), tokens.begin(), tokens.end()); },
        [&](std::int64_t bytes) {
          CHECK(bytes > last);
          last = bytes;
        });
    CHECK(found == expected);
    CHECK(last == static_cast<std::int64_t>(text.size()) + 6);
  }
}

TEST_CASE("tokenize: the end of each file is held out, from the start of a line") {
  const TemporaryFolder folder;
  const std::string path = write_file(folder / "a.txt", "one two\nthree four\nfive six\nseven\n");
  TokenizeFilesOptions options;
  options.val_fraction = 0.3;  // 10 of 34 bytes: within "five six"
  Split split = tokenize({path}, options);
  CHECK(split.train == with_end("one two\nthree four\nfive six\n"));
  CHECK(split.held_out == with_end("seven\n"));
  options.separate = false;
  split = tokenize({path}, options);
  CHECK(tokenizer().decode(split.train) + tokenizer().decode(split.held_out) == read_file(path));

  // Without lines, at a word.
  options.separate = true;
  split = tokenize({write_file(path, "a hound runs over the grey hills")}, options);
  CHECK(split.train == with_end("a hound runs over the grey"));
  CHECK(split.held_out == with_end(" hills"));
  split = tokenize({write_file(path, "nothing-to-cut")}, options);
  CHECK(split.train == with_end("nothing-to-cut"));
  CHECK(split.held_out.empty());
  CHECK(tokenize({write_file(path, "")}).train.empty());
}

TEST_CASE("tokenize: lines of JSON are one document each") {
  const TemporaryFolder folder;
  const std::string path = folder / "a.jsonl";
  write_file(path, "{\"text\": \"one\\ntwo\", \"id\": 3}\r\n\n  \n{\"text\": \"\"}\n{\"text\": \"three \\u00e9\"}");
  CHECK(tokenize({path}).train == joined(joined(with_end("one\ntwo"), with_end("")), with_end("three é")));
  TokenizeFilesOptions options;
  options.val_fraction = 0.2;
  CHECK(tokenize({path}, options).held_out.empty());  // no line starts in the last fifth
  options.val_fraction = 0.4;
  CHECK(tokenize({path}, options).held_out == with_end("three é"));

  for (const char* line :
       {"{\"text\": 3}", "{\"txt\": \"a\"}", "[]", "\"text\"", "{\"text\": \"a\"", "{\"text\": \"\xFF\"}"}) {
    CAPTURE(line);
    write_file(path, "{\"text\": \"fine\"}\n\n" + std::string(line) + "\n");
    CHECK(contains(error_of([&] { tokenize({path}); }), "1: " + path + ": line 3: expected "));
  }
  // Of several mistakes the first is told of.
  std::string many;
  for (int i = 0; i < 60000; ++i)
    many += i >= 20000 && i % 20000 == 0 ? "bad\n" : "{\"text\": \"The hound runs over.\"}\n";
  write_file(path, many);
  for (int i = 0; i < 5; ++i) {
    options.threads = 3;
    CHECK(contains(error_of([&] { tokenize({path}, options); }), ": line 20001: "));
  }
}

TEST_CASE("tokenize: special tokens in the text are text unless they are asked for") {
  const TemporaryFolder folder;
  const std::string path = write_file(folder / "a.txt", "a<|endoftext|> b<|endoftext|><|endoftext|>c <|endof");
  Ids expected = with_end("a<|endoftext|> b<|endoftext|><|endoftext|>c <|endof");
  CHECK(tokenize({path}).train == expected);
  TokenizeFilesOptions options;
  options.special_tokens = true;
  const std::int32_t end = tokenizer().end_of_text();
  expected = joined(joined(with_end("a"), with_end(" b")), joined({end}, with_end("c <|endof")));
  CHECK(tokenize({path}, options).train == expected);
}

TEST_CASE("tokenize: what a sink throws ends the work") {
  const TemporaryFolder folder;
  const std::string path = write_file(folder / "a.txt", prose(150000));
  TokenizeFilesOptions options;
  options.threads = 4;
  CHECK(error_of([&] {
          tokenize_files(tokenizer(), {path}, options,
                         [](bool, std::span<const std::int32_t>) { throw_runtime("full"); });
        }) == "1: full");
  CHECK(contains(error_of([&] { tokenize({folder / "none"}, options); }), "1: cannot open " + (folder / "none")));
}

TEST_CASE("tokenize: a file that changes its size meanwhile is refused") {
  const TemporaryFolder folder;
  const std::string text = prose(300000);
  for (const std::size_t size : {std::size_t{4096}, text.size() + 1}) {
    const std::string path = write_file(folder / "a.txt", text);
    TokenizeFilesOptions options;
    options.threads = 1;
    const std::string error = error_of([&] {
      tokenize_files(tokenizer(), {path}, options,
                     [&](bool, std::span<const std::int32_t>) { std::filesystem::resize_file(path, size); });
    });
    CHECK(error == "1: " + path + ": changed while it was read: expected " + std::to_string(text.size()) +
                       " bytes, found " + std::to_string(size));
  }
}

TEST_CASE("tokenize: a word of many megabytes is cut nowhere, and can be stopped") {
  const TemporaryFolder folder;
  const std::string word(3 << 20, 'a'), path = write_file(folder / "a.txt", "The " + word + " hound");
  CHECK(tokenize({path}).train == with_end("The " + word + " hound"));
  std::vector<std::int32_t> tokens;
  int calls = 0;
  CHECK(error_of([&] {
          tokenizer().merges()->encode_word(word, tokens, [&] {
            if (++calls == 30) throw_runtime("stopped");
          });
        }) == "1: stopped");
  CHECK(tokens.empty());
  TokenizeFilesOptions options;
  options.poll = [] { throw_runtime("stopped"); };
  CHECK(error_of([&] { tokenize({path}, options); }) == "1: stopped");
}

TEST_CASE("shard writer: shards of a size, with 16 or 32 bits") {
  for (const int bytes : {2, 4}) {
    const TemporaryFolder folder;
    Ids ids;
    for (int i = 0; i < 25; ++i) ids.push_back(i * 2621 + (bytes == 4 ? 70000 : 0));
    ShardWriter writer(folder.path(), "train", bytes, 10);
    writer.append(std::span(ids).first(3));
    writer.append(std::span(ids).subspan(3, 20));
    CHECK(writer.paths().size() == 2);
    CHECK_FALSE(std::filesystem::exists(folder / "train_000002.bin"));  // not before it is whole
    writer.append(std::span(ids).last(2));
    writer.finish();
    CHECK(writer.tokens() == 25);
    REQUIRE(writer.paths() == std::vector<std::string>{folder / "train_000000.bin", folder / "train_000001.bin",
                                                       folder / "train_000002.bin"});
    CHECK(joined(joined(ids_of(writer.paths()[0]), ids_of(writer.paths()[1])), ids_of(writer.paths()[2])) == ids);
    CHECK(read_shard_header(writer.paths()[2]).tokens == 5);
    CHECK(read_shard_header(writer.paths()[0]).bytes_per_token == bytes);
  }
}

TEST_CASE("shard writer: a token that does not fit is refused, with position and id, and leaves nothing") {
  const TemporaryFolder folder;
  {
    ShardWriter writer(folder.path(), "val", 2, 100);
    writer.append(Ids{1, 2, 65535});
    const std::string file = folder / "val_000000.bin";
    CHECK(error_of([&] {
            writer.append(Ids{7, 65536});
          }) == "2: " + file + ": token 4: id 65536 does not fit a shard of ids from 0 to 65535");
    CHECK(contains(error_of([&] { writer.append(Ids{-1}); }), "token 3: id -1 does not fit"));
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("content hash: other contents, other names") {
  std::set<std::string> seen;
  std::string text;
  for (int i = 0; i < 100; ++i) {
    CHECK(content_hash(text).size() == 32);
    CHECK(seen.insert(content_hash(text)).second);
    text += '\0';
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = 1;
    CHECK(seen.insert(content_hash(changed)).second);
  }
  CHECK(content_hash("a") == content_hash(std::string(1, 'a')));
  for (std::size_t first = 0; first <= text.size(); first += 7) {  // in parts
    ContentHash hash;
    hash.add(std::string_view(text).substr(0, first));
    hash.add(std::string_view(text).substr(first));
    CHECK(to_hexadecimal(hash.finish()) == content_hash(text));
  }
}

TEST_CASE("token cache: made once, known by the contents, made anew when damaged") {
  const TemporaryFolder folder;
  const Variable cache("GREYHOUND_CACHE", folder / "cache");
  const auto shards = [&] {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "cache")) {
      if (entry.path().extension() == ".bin") found.push_back(entry.path().string());
    }
    return found;
  };
  const std::string text = prose(50), path = write_file(folder / "a.txt", text);
  const auto all = [&](const std::string& file) {
    const auto tokens = open_cached_tokens(file, tokenizer());
    Ids ids(static_cast<std::size_t>(tokens->tokens()));
    tokens->read(0, ids);
    CHECK(tokens->path() == file);
    return ids;
  };
  CHECK(all(path) == with_end(text));
  REQUIRE(shards().size() == 1);
  const std::string shard = shards()[0];
  const auto time = std::filesystem::last_write_time(shard);
  CHECK(all(write_file(folder / "b.txt", text)) == with_end(text));
  CHECK(std::filesystem::last_write_time(shard) == time);
  CHECK(shards().size() == 1);

  write_file(shard, read_file(shard).substr(0, 1500));
  CHECK(all(path) == with_end(text));
  CHECK(shards().size() == 1);
  std::string flipped = read_file(shard);  // of the same size
  flipped.back() = static_cast<char>(flipped.back() ^ 0x40);
  write_file(shard, flipped);
  CHECK(all(path) == with_end(text));
  CHECK(read_file(shard) != flipped);
  write_file(path, text + "!");
  CHECK(all(path) == with_end(text + "!"));
  CHECK(shards().size() == 2);
  CHECK(
      contains(error_of([&] { all(write_file(folder / "empty.txt", "")); }), "1: " + (folder / "empty.txt") + ": exp"));
  CHECK(contains(error_of([&] {
                   const auto tokens = open_cached_tokens(path, tokenizer());
                   Ids ids(3);
                   tokens->read(tokens->tokens() - 2, ids);
                 }),
                 "2: " + path + ": tokens "));
}

TEST_CASE("tokenize command: shards, a split, and the tokenizer beside them") {
  const TemporaryFolder folder;
  TokenizeOptions options;
  options.tokenizer = tokenizer_path;
  options.out = folder / "data";
  options.files = {write_file(folder / "a.txt", prose(500)), folder / "*.jsonl"};
  write_file(folder / "b.jsonl", "{\"text\": \"The hound.\"}\n{\"text\": \"The hills.\"}\n");
  options.shard_tokens = 1000;
  options.val_fraction = 0.25;
  tokenize_command(options);
  TokenizeFilesOptions how;
  how.val_fraction = 0.25;
  const Split expected = tokenize({folder / "a.txt", folder / "b.jsonl"}, how);
  Split found;
  const std::string out = folder / "data/";
  for (std::size_t i = 0; std::filesystem::exists(out + "train_00000" + std::to_string(i) + ".bin"); ++i) {
    found.train = joined(found.train, ids_of(out + "train_00000" + std::to_string(i) + ".bin"));
  }
  for (std::size_t i = 0; std::filesystem::exists(out + "val_00000" + std::to_string(i) + ".bin"); ++i) {
    found.held_out = joined(found.held_out, ids_of(out + "val_00000" + std::to_string(i) + ".bin"));
  }
  CHECK(found == expected);
  CHECK(expected.train.size() > 3000);
  CHECK(Tokenizer::load(out + "tokenizer.json").encode("The hound") == tokenizer().encode("The hound"));

  // Not over earlier shards, unless it is told to; what fails leaves them as they were.
  CHECK(contains(error_of([&] { tokenize_command(options); }),
                 "2: --out " + options.out + ": already holds token shards"));
  options.overwrite = true;
  options.shard_tokens = 1000000;
  tokenize_command(options);
  CHECK_FALSE(std::filesystem::exists(out + "train_000001.bin"));
  CHECK(ids_of(out + "train_000000.bin") == expected.train);
  write_file(folder / "c.jsonl", "bad");
  options.shard_tokens = 1000;
  CHECK(contains(error_of([&] { tokenize_command(options); }), "c.jsonl: line 1: expected a line of JSON"));
  CHECK(ids_of(out + "train_000000.bin") == expected.train);
  CHECK_FALSE(std::filesystem::exists(out + ".tokenize.tmp"));
  CHECK_FALSE(std::filesystem::exists(out + "train_000001.bin"));
  options.files = {folder / "none.txt"};
  CHECK(contains(error_of([&] { tokenize_command(options); }), "2: tokenize: no file matches"));
}

TEST_CASE("tokenize command: a vocabulary of more than 65536 tokens makes 32-bit shards") {
  const TemporaryFolder folder;
  nlohmann::json json = nlohmann::json::parse(read_file(tokenizer_path));
  nlohmann::json& vocab = json["model"]["vocab"];
  const auto add = [&](const std::string& left, const std::string& right) {
    if (vocab.size() >= 65537 || vocab.contains(left + right)) return;
    const std::size_t id = vocab.size();
    vocab[left + right] = id;
    json["model"]["merges"].push_back({left, right});
  };
  std::vector<std::string> high, pairs;  // of bytes that the text has not
  for (int byte = 0x80; byte < 0x100; ++byte) high.push_back(to_byte_alphabet(std::string(1, static_cast<char>(byte))));
  for (const std::string& left : high) {
    for (const std::string& right : high) {
      add(left, right);
      pairs.push_back(left + right);
    }
  }
  for (const std::string& pair : pairs) {
    for (const std::string& right : high) add(pair, right);
  }
  REQUIRE(vocab.size() == 65537);
  TokenizeOptions options;
  options.tokenizer = write_file(folder / "t.json", json.dump());
  options.out = folder / "data";
  options.files = {write_file(folder / "a.txt", "The hound runs")};
  options.val_fraction = 0;
  tokenize_command(options);
  CHECK(read_shard_header(folder / "data/train_000000.bin").bytes_per_token == 4);
  CHECK(ids_of(folder / "data/train_000000.bin") == with_end("The hound runs"));
}

TEST_CASE("tokenize command: what is in the folder, and who else writes there") {
  const TemporaryFolder folder;
  TokenizeOptions options;
  options.tokenizer = tokenizer_path;
  options.out = folder / "data";
  options.files = {write_file(folder / "a.txt", "The hound runs")};
  std::filesystem::create_directory(options.out);
  const auto error = [&] { return error_of([&] { tokenize_command(options); }); };
  {
    const FolderLock other(options.out);
    CHECK(error() == "1: " + options.out + ": another greyhound is writing to this folder");
  }
  CHECK(std::filesystem::is_empty(options.out));

  // Another tokenizer is kept; the same one, however it is written, stays as it is.
  const std::string beside = write_file(folder / "data/tokenizer.json", "mine");
  CHECK(contains(error(), "2: --out " + options.out + ": already holds another tokenizer.json"));
  CHECK(read_file(beside) == "mine");
  const std::string indented = nlohmann::json::parse(read_file(tokenizer_path)).dump(2);
  write_file(beside, indented);
  CHECK(error() == "no error");
  CHECK(read_file(beside) == indented);
  write_file(beside, "mine");
  options.overwrite = true;
  CHECK(error() == "no error");
  CHECK(Tokenizer::load(beside).vocab_size() == 1200);

  const std::string shard = read_file(folder / "data/train_000000.bin");
  options.files = {write_file(folder / "b.txt", shard)};
  CHECK(contains(error(), "1: " + (folder / "b.txt") + ": expected text, found a token shard"));
  options.files = {write_file(folder / "b.json", "{\"text\": \"a\"}\n")};
  CHECK(contains(error(), "b.json: begins with {\"text\": as lines of JSON do"));
  CHECK(read_file(folder / "data/train_000000.bin") == shard);
}
