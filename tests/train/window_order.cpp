#include <doctest/doctest.h>
#include <greyhound/train/window_order.h>

#include <set>
#include <vector>

using namespace greyhound;

TEST_CASE("window order: shard edges") {
  // n tokens around whole numbers of batches of S = ranks * B * T tokens.
  for (const std::int64_t ranks : {1, 2, 3}) {
    const std::int64_t batch_tokens = ranks * 4 * 8;
    for (const std::int64_t k : {0, 1, 2, 5}) {
      CAPTURE(ranks);
      CAPTURE(k);
      CHECK(shard_batches(k * batch_tokens, batch_tokens) == (k == 0 ? 0 : k - 1));
      CHECK(shard_batches(k * batch_tokens + 1, batch_tokens) == k);
      CHECK(shard_batches(k * batch_tokens + 2, batch_tokens) == k);
      CHECK(shard_batches((k + 1) * batch_tokens, batch_tokens) == k);
      CHECK(shard_batches((k + 1) * batch_tokens + 1, batch_tokens) == k + 1);
    }
  }
}

TEST_CASE("window order: 5e9 tokens and 64 ranks are exact") {
  const std::int64_t tokens = 5'000'000'000, block_size = 1024, rows = 64 * 8;  // 64 ranks, 8 rows each
  const std::int64_t batch_tokens = rows * block_size;                          // 524,288
  const std::int64_t batches = shard_batches(tokens, batch_tokens);
  CHECK(batches == 9536);  // 4,999,999,999 / 524,288 = 9536.74...
  CHECK(shard_row_start(batches - 1, batch_tokens, rows - 1, block_size) == 4'999'609'344);
  // The last row's last target lies in the shard; one batch more would not.
  CHECK(shard_row_start(batches - 1, batch_tokens, rows - 1, block_size) + block_size < tokens);
  CHECK(shard_row_start(batches, batch_tokens, rows - 1, block_size) + block_size >= tokens);

  PartIndex index;
  for (int shard = 0; shard < 1000; ++shard) index.add(batches);
  CHECK(index.total() == 9'536'000);
  CHECK(index[9'535'999].part == 999);
  CHECK(index[9'535'999].item == 9535);

  const TextWindows windows = text_windows(tokens, 1);
  CHECK(windows.count == 4'999'999'998);
  const Permutation order(windows.count, 7);
  for (const std::int64_t i : {std::int64_t{0}, std::int64_t{4'294'967'296}, windows.count - 1}) {
    CHECK(order[i] >= 0);
    CHECK(order[i] < windows.count);
  }
}

TEST_CASE("window order: windows of text fit at every offset") {
  for (std::int64_t tokens = 0; tokens < 60; ++tokens) {
    for (const std::int64_t block_size : {1, 2, 7, 16}) {
      CAPTURE(tokens);
      CAPTURE(block_size);
      const TextWindows windows = text_windows(tokens, block_size);
      CHECK((windows.count > 0) == (tokens >= block_size + 1));
      if (windows.count == 0) continue;
      CHECK(windows.max_offset >= 0);
      CHECK(windows.max_offset < 2 * block_size);
      // The last window's last target is the text's last token at the largest offset.
      CHECK(windows.max_offset + windows.count * block_size == tokens - 1);
      if (windows.count > 1) CHECK(windows.max_offset >= block_size);  // every alignment
    }
  }
}

TEST_CASE("window order: parts without items are passed over") {
  PartIndex index;
  for (const std::int64_t items : {0, 3, 0, 0, 2}) index.add(items);
  CHECK(index.total() == 5);
  const std::vector<std::pair<std::size_t, std::int64_t>> expected = {{1, 0}, {1, 1}, {1, 2}, {4, 0}, {4, 1}};
  for (std::int64_t i = 0; i < 5; ++i) {
    CHECK(index[i].part == expected[static_cast<std::size_t>(i)].first);
    CHECK(index[i].item == expected[static_cast<std::size_t>(i)].second);
  }
}

TEST_CASE("window order: the permutation visits every index once, and another key orders it otherwise") {
  for (const std::int64_t size : {1, 2, 3, 4, 5, 16, 17, 64, 65, 1000, 4097}) {
    CAPTURE(size);
    const Permutation order(size, 1), other(size, 2);
    std::set<std::int64_t> seen;
    std::int64_t same = 0, in_place = 0;
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t index = order[i];
      CHECK(index >= 0);
      CHECK(index < size);
      seen.insert(index);
      same += index == other[i];
      in_place += index == i;
    }
    CHECK(static_cast<std::int64_t>(seen.size()) == size);
    if (size >= 1000) CHECK(same < 12);  // one index in expectation
    if (size >= 1000) CHECK(in_place < 12);
  }
}
