#include <doctest/doctest.h>
#include <greyhound/train/loader.h>
#include <greyhound/train/text_data.h>
#include <greyhound/train/token_shards.h>

#include "test_files.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <utility>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

std::vector<std::int32_t> values(const ConstTensor& tensor) {
  const std::int32_t* data = tensor.as<std::int32_t>();
  return {data, data + tensor.elements()};
}

BatchPlan make_plan(std::int64_t rows_per_rank, std::int64_t block_size, std::int64_t ranks) {
  return plan_batch(rows_per_rank, rows_per_rank * ranks * block_size, block_size, ranks);
}

// Inputs and targets of every rank of a step, one rank after the other.
struct Step {
  std::vector<std::int32_t> tokens, targets;
};
Step next_step(std::vector<Loader>& ranks) {
  Step step;
  for (Loader& loader : ranks) {
    const HostBatch batch = loader.next();
    CHECK(batch.first_row == step.tokens.size() / static_cast<std::size_t>(batch.tokens.columns()));
    const std::vector<std::int32_t> tokens = values(batch.tokens), targets = values(batch.targets);
    step.tokens.insert(step.tokens.end(), tokens.begin(), tokens.end());
    step.targets.insert(step.targets.end(), targets.begin(), targets.end());
  }
  return step;
}

std::vector<Loader> all_ranks(const std::shared_ptr<const DataSource>& source, const BatchPlan& plan) {
  std::vector<Loader> loaders;
  for (std::int64_t rank = 0; rank < plan.ranks; ++rank) loaders.emplace_back(source, plan, rank, 1 << 30);
  return loaders;
}

std::shared_ptr<TextData> text_source(const std::string& path, std::int64_t block_size, std::int64_t rows,
                                      std::uint64_t seed = 1) {
  const auto file = std::make_shared<const TextFile>(path, Tokenizer::bytes());
  return std::make_shared<TextData>(std::vector<TextRange>{{file, 0, file->tokens()}}, block_size, rows, seed);
}

// In kilobytes: what the process holds in physical memory, mapped files included.
std::int64_t resident_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::stoll(line.substr(6));
  }
  return 0;
}

}  // namespace

TEST_CASE("loader: shard edges: every pair once an epoch, adjacent in one file, each batch on one rank") {
  const TemporaryFolder folder;
  constexpr std::int64_t rows = 2, block_size = 3;
  for (const std::int64_t ranks : {1, 2, 3}) {
    const std::int64_t S = ranks * rows * block_size;
    const BatchPlan plan = make_plan(rows, block_size, ranks);
    for (const std::int64_t k : {1, 2, 3}) {
      // A second shard of another length shows what happens between files; its ids start at 1000.
      for (const std::int64_t n : {k * S, k * S + 1, k * S + 2, (k + 1) * S}) {
        CAPTURE(ranks);
        CAPTURE(n);
        std::vector<TokenShard> shards = {
            read_shard_header(write_file(folder / "0.bin", counting_shard(n))),
            read_shard_header(write_file(folder / "1.bin", counting_shard(2 * S + 1, 1000)))};
        const auto source = std::make_shared<TokenShards>(shards, block_size, plan.rows());
        const std::int64_t first_shard = (n - 1) / S;
        REQUIRE(source->steps() == first_shard + 2);

        std::vector<Loader> loaders = all_ranks(source, plan);
        std::vector<Loader> one_rank = all_ranks(source, make_plan(rows * ranks, block_size, 1));
        std::set<std::pair<std::int32_t, std::int32_t>> pairs;
        for (std::int64_t i = 0; i < source->steps(); ++i) {
          const Step step = next_step(loaders);
          const std::int64_t start = i < first_shard ? i * S : 1000 + (i - first_shard) * S;
          for (std::int64_t t = 0; t < S; ++t) {
            CHECK(step.tokens[static_cast<std::size_t>(t)] == start + t);
            CHECK(step.targets[static_cast<std::size_t>(t)] == start + t + 1);
            pairs.insert({step.tokens[static_cast<std::size_t>(t)], step.targets[static_cast<std::size_t>(t)]});
          }
          const Step single = next_step(one_rank);
          CHECK(single.tokens == step.tokens);
          CHECK(single.targets == step.targets);
        }
        CHECK(static_cast<std::int64_t>(pairs.size()) == source->steps() * S);
        CHECK(loaders[0].epoch() == 1.0);
        const std::int32_t first = next_step(loaders).tokens[0];  // the next epoch starts over
        CHECK(first == (first_shard > 0 ? 0 : 1000));
      }
    }
  }
}

TEST_CASE("loader: a file that is cut short during the run is an error, not the end of the program") {
  const TemporaryFolder folder;
  constexpr std::int64_t length = 3 * 4096;  // more than the page in which the file then ends
  const BatchPlan plan = make_plan(1, 4, 1);
  const std::string text = write_file(folder / "a.txt", std::string(length, 'x'));
  const std::string shard = write_file(folder / "a.bin", counting_shard(length));
  const std::shared_ptr<const DataSource> sources[] = {
      text_source(text, 4, 1), std::make_shared<TokenShards>(std::vector<TokenShard>{read_shard_header(shard)}, 4, 1)};
  const std::string paths[] = {text, shard};
  for (int i = 0; i < 2; ++i) {
    CAPTURE(paths[i]);
    Loader loader(sources[i], plan, 0, 1 << 30);
    Evaluator evaluator(sources[i], 1, 1, 1, 4, 0, 1, 1 << 30);
    loader.next();
    std::filesystem::resize_file(paths[i], 100);
    const std::string start = "1: " + paths[i] + ": was cut short while it was read";
    CHECK(contains(error_of([&] { loader.next(); }), start));
    CHECK(contains(error_of([&] { evaluator.batch(0); }), start));
  }
}

TEST_CASE("loader: 3.5 epochs are counted") {
  const TemporaryFolder folder;
  const BatchPlan plan = make_plan(1, 4, 1);
  const auto source = std::make_shared<TokenShards>(
      std::vector<TokenShard>{read_shard_header(write_file(folder / "a.bin", counting_shard(2 * 4 + 1)))}, 4, 1);
  Loader loader(source, plan, 0, 100);
  for (int step = 0; step < 7; ++step) loader.next();
  CHECK(loader.epoch() == 3.5);
  CHECK(loader.step() == 7);

  write_file(folder / "a.txt", std::string(4 * 5 + 1, 'x'));  // 5 whole windows, one given up for the offsets
  Loader text(text_source(folder / "a.txt", 4, 1), plan, 0, 256);
  for (int step = 0; step < 14; ++step) text.next();
  CHECK(text.epoch() == 3.5);
}

TEST_CASE("loader: text: ranks and micro-batches do not matter, epochs differ, windows of an epoch do not overlap") {
  const TemporaryFolder folder;
  // Bytes 4 i .. 4 i + 3 spell i, so that a window says where it starts.
  std::string text;
  constexpr std::int64_t block_size = 8, words = 400;
  for (std::int64_t i = 0; i < words; ++i) {
    text += {static_cast<char>(i % 16), static_cast<char>(16 + i / 16 % 16), static_cast<char>(32 + i / 256),
             static_cast<char>(64)};
  }
  const auto start_of = [](const std::int32_t* window) {
    int shift = 0;
    while (window[shift] != 64) ++shift;
    const std::int32_t* word = window + shift + 1;
    return 4 * (word[0] % 16 + (word[1] - 16) * 16 + (word[2] - 32) * 256) - shift - 1;
  };
  const std::string path = write_file(folder / "a.txt", text);
  constexpr std::int64_t rows = 6;
  const auto source = text_source(path, block_size, rows);
  CHECK(source->windows() == (4 * words - 1) / block_size - 1);

  std::vector<Loader> single = all_ranks(source, make_plan(6, block_size, 1));
  std::vector<Loader> ranks = all_ranks(source, make_plan(2, block_size, 3));
  std::vector<std::int64_t> starts;
  const std::int64_t steps = 2 * source->windows() / rows;
  for (std::int64_t i = 0; i < steps; ++i) {
    const Step step = next_step(single);
    CHECK(step.tokens == next_step(ranks).tokens);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int32_t* window = step.tokens.data() + row * block_size;
      const std::int64_t start = start_of(window);
      starts.push_back(start);
      for (std::int64_t t = 0; t < block_size; ++t) {
        REQUIRE(window[t] == static_cast<unsigned char>(text[static_cast<std::size_t>(start + t)]));
        REQUIRE(step.targets[static_cast<std::size_t>(row * block_size + t)] ==
                static_cast<unsigned char>(text[static_cast<std::size_t>(start + t + 1)]));
      }
    }
  }
  const auto epoch = [&](std::int64_t number) {
    const auto begin = starts.begin() + number * source->windows();
    return std::set<std::int64_t>(begin, begin + source->windows());
  };
  for (std::int64_t number = 0; number < 2; ++number) {
    const std::set<std::int64_t> seen = epoch(number);
    CHECK(static_cast<std::int64_t>(seen.size()) == source->windows());
    // Different windows of one offset: they are a whole number of rows apart.
    for (const std::int64_t start : seen) CHECK((start - *seen.begin()) % block_size == 0);
  }
  CHECK(!std::equal(starts.begin(), starts.begin() + source->windows(), starts.begin() + source->windows()));
  CHECK(!std::is_sorted(starts.begin(), starts.begin() + source->windows()));

  std::vector<Loader> other = all_ranks(text_source(path, block_size, rows, 2), make_plan(6, block_size, 1));
  std::vector<Loader> again = all_ranks(text_source(path, block_size, rows, 1), make_plan(6, block_size, 1));
  const std::vector<std::int32_t> first = next_step(again).tokens;
  CHECK(first != next_step(other).tokens);
  CHECK(start_of(first.data()) == starts[0]);
}

TEST_CASE("loader: a token outside the vocabulary is an error with file, position and id") {
  const TemporaryFolder folder;
  std::vector<std::uint16_t> ids(41, 7);
  ids[23] = 50300;
  const std::string path = write_file(folder / "a.bin", shard_bytes(ids));
  const auto source = std::make_shared<TokenShards>(std::vector<TokenShard>{read_shard_header(path)}, 10, 2);
  Loader loader(source, make_plan(2, 10, 1), 0, 50257);
  loader.next();
  CHECK(error_of([&] { loader.next(); }) ==
        "1: " + path + ", token 23: token id 50300 is outside the vocabulary of 50257 (model.vocab_size)");
  CHECK_NOTHROW(Loader(source, make_plan(2, 10, 1), 0, 50301).next());
  Evaluator evaluator(source, 0, 1, 1, 10, 0, 1, 50257);
  CHECK_NOTHROW(evaluator.batch(0));
  CHECK(contains(error_of([&] { evaluator.batch(2); }), path + ", token 23: token id 50300"));

  // Ids that would be negative as int32.
  const std::string wide =
      write_file(folder / "b.bin", shard_bytes<std::uint32_t>(std::vector<std::uint32_t>(21, 0xFFFFFFFFu)));
  Loader wide_loader(std::make_shared<TokenShards>(std::vector<TokenShard>{read_shard_header(wide)}, 10, 2),
                     make_plan(2, 10, 1), 0, 2147483647);
  CHECK(contains(error_of([&] { wide_loader.next(); }), "token 0: token id 4294967295"));
}

TEST_CASE("loader: ignored targets are marked and counted, inputs keep them") {
  const TemporaryFolder folder;
  const std::string path = write_file(folder / "a.bin", shard_bytes<std::uint16_t>({0, 1, 0, 2, 0, 0, 3, 4, 5}));
  const auto source = std::make_shared<TokenShards>(std::vector<TokenShard>{read_shard_header(path)}, 4, 2);
  Loader loader(source, make_plan(2, 4, 1), 0, 10, 0);
  const HostBatch batch = loader.next();
  CHECK(values(batch.tokens) == std::vector<std::int32_t>{0, 1, 0, 2, 0, 0, 3, 4});
  CHECK(values(batch.targets) == std::vector<std::int32_t>{1, -100, 2, -100, -100, 3, 4, 5});
  CHECK(batch.valid_targets == 5);
  CHECK(batch.slice(0, 1).valid_targets == 2);
  CHECK(batch.slice(1, 1).valid_targets == 3);
  CHECK(batch.slice(1, 1).first_row == 1);
  CHECK(values(batch.slice(1, 1).tokens) == std::vector<std::int32_t>{0, 0, 3, 4});
}

TEST_CASE("loader: overfit_batch always yields the first step's batch") {
  const TemporaryFolder folder;
  const auto source = std::make_shared<TokenShards>(
      std::vector<TokenShard>{read_shard_header(write_file(folder / "a.bin", counting_shard(100)))}, 5, 2);
  Loader loader(source, make_plan(2, 5, 1), 0, 1000, -1, true);
  const std::vector<std::int32_t> first = values(loader.next().tokens);
  for (int step = 0; step < 5; ++step) CHECK(values(loader.next().tokens) == first);
  CHECK(loader.step() == 6);
}

TEST_CASE("loader: its whole state is the step") {
  struct Reader : StateVisitor {
    std::int64_t step = -1;
    bool write = false;
    void tensor(const std::string&, const Tensor&) override { FAIL("unexpected"); }
    void real(const std::string&, double&) override { FAIL("unexpected"); }
    void text(const std::string&, std::string&) override { FAIL("unexpected"); }
    void integer(const std::string& name, std::int64_t& value) override {
      CHECK(name == "loader.step");
      write ? value = step : step = value;
    }
  };
  const TemporaryFolder folder;
  const std::string path = write_file(folder / "a.txt", std::string(200, 'a') + std::string(200, 'b') + "cdefghij");
  const BatchPlan plan = make_plan(3, 7, 1);
  const auto source = text_source(path, 7, 3);
  Loader straight(source, plan, 0, 256), resumed(source, plan, 0, 256);
  for (int step = 0; step < 50; ++step) straight.next();
  Reader state;
  straight.visit_state(state);
  CHECK(state.step == 50);
  state.write = true;
  resumed.visit_state(state);
  for (int step = 0; step < 50; ++step) {
    const std::vector<std::int32_t> expected = values(straight.next().tokens);
    CHECK(values(resumed.next().tokens) == expected);
  }
}

TEST_CASE("evaluation: the same rows at every pass and for any number of ranks") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 256; ++i) text += static_cast<char>(i);
  const auto source = text_source(write_file(folder / "a.txt", text), 5, 1);
  REQUIRE(source->sequential_rows() == 51);
  for (const std::int64_t batches : {0, 1, 3, 1000}) {
    std::vector<std::int32_t> expected;
    for (const std::int64_t ranks : {1, 2, 3, 7}) {
      for (const std::int64_t micro_batch : {1, 4}) {
        CAPTURE(batches);
        CAPTURE(ranks);
        std::vector<std::int32_t> tokens;
        for (int pass = 0; pass < 2; ++pass) {
          tokens.clear();
          for (std::int64_t rank = 0; rank < ranks; ++rank) {
            Evaluator evaluator(source, batches, 4, micro_batch, 5, rank, ranks, 256);
            for (std::int64_t i = 0; i < evaluator.size(); ++i) {
              const HostBatch batch = evaluator.batch(i);
              CHECK(batch.rows <= micro_batch);
              CHECK(batch.first_row * 5 == tokens.size());
              CHECK(batch.valid_targets == batch.rows * 5);
              const std::vector<std::int32_t> part = values(batch.tokens);
              tokens.insert(tokens.end(), part.begin(), part.end());
            }
          }
        }
        const std::int64_t rows = batches == 0 || batches == 1000 ? 51 : 4 * batches;
        CHECK(static_cast<std::int64_t>(tokens.size()) == rows * 5);
        if (expected.empty()) expected = tokens;
        CHECK(tokens == expected);
        // In order without overlap, from the start to the end of the split.
        for (std::size_t row = 1; row < tokens.size() / 5; ++row) CHECK(tokens[row * 5] >= tokens[row * 5 - 5] + 5);
        CHECK(tokens[0] == 0);
        CHECK(tokens[tokens.size() - 5] >= 255 - 5 * (51 / rows + 1));
      }
    }
  }
}

TEST_CASE("loader: resident memory after 10,000 batches is that after 100, within 5 MB") {
  const TemporaryFolder folder;
  const std::string text_path = folder / "a.txt", shard_path = folder / "a.bin";
  {
    std::string block(1 << 20, 'x');
    std::string text;
    for (int i = 0; i < 40; ++i) text += block;  // 40 MB
    write_file(text_path, text);
    write_file(shard_path, shard_bytes(std::vector<std::uint16_t>(20 << 20, 5)));
  }
  constexpr std::int64_t block_size = 256, rows = 8;
  const BatchPlan plan = make_plan(rows, block_size, 1);
  const std::vector<std::shared_ptr<const DataSource>> sources = {
      text_source(text_path, block_size, rows),
      std::make_shared<TokenShards>(std::vector<TokenShard>{read_shard_header(shard_path)}, block_size, rows)};
  for (const auto& source : sources) {
    Loader loader(source, plan, 0, 256);
    for (int step = 0; step < 100; ++step) loader.next();
    const std::int64_t before = resident_memory();
    REQUIRE(before > 0);
    for (int step = 100; step < 10000; ++step) loader.next();
    const std::int64_t growth = resident_memory() - before;
    CAPTURE(growth);
    CHECK(growth < 5 * 1024);
  }
}
