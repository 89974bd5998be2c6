// Rows of factor values that cover every pair of values of two factors: the faults of an operation mostly hang on one
// or two of its sizes and options. Deterministic.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace greyhound::test {

using Choice = std::vector<int>;  // for each factor, which of its values

// levels[f]: how many values factor f has. `allowed` is asked about whole rows. Greedy: each new row is built around a
// pair that is still missing, each further factor taking the value that covers most missing pairs.
inline std::vector<Choice> all_pairs(const std::vector<int>& levels,
                                     const std::function<bool(const Choice&)>& allowed) {
  const int factors = static_cast<int>(levels.size());
  std::vector<int> first(levels.size() + 1, 0);
  for (int f = 0; f < factors; ++f) first[f + 1] = first[f] + levels[f];
  const int values = first[factors];
  std::vector<char> missing(values * values, 0);
  const auto pair = [&](int f, int a, int g, int b) -> char& {
    return f < g ? missing[(first[f] + a) * values + first[g] + b] : missing[(first[g] + b) * values + first[f] + a];
  };
  for (int f = 0; f < factors; ++f) {
    for (int g = f + 1; g < factors; ++g) {
      for (int a = 0; a < levels[f]; ++a) {
        for (int b = 0; b < levels[g]; ++b) pair(f, a, g, b) = 1;
      }
    }
  }

  std::vector<Choice> rows;
  // Fills the factors of `row` that are -1; false where no allowed row has the given ones.
  const std::function<bool(Choice&)> complete = [&](Choice& row) {
    int next = -1;
    for (int f = factors - 1; f >= 0; --f) {
      if (row[f] < 0) next = f;
    }
    if (next < 0) return allowed(row);
    std::vector<std::pair<int, int>> order;  // by gain, then turned with the number of rows so that values alternate
    for (int i = 0; i < levels[next]; ++i) {
      const int value = (i + static_cast<int>(rows.size())) % levels[next];
      int gain = 0;
      for (int g = 0; g < factors; ++g) {
        if (g != next && row[g] >= 0) gain += pair(next, value, g, row[g]);
      }
      auto at = order.begin();
      while (at != order.end() && at->first >= gain) ++at;
      order.insert(at, {gain, value});
    }
    for (const auto& [gain, value] : order) {
      row[next] = value;
      if (complete(row)) return true;
    }
    row[next] = -1;
    return false;
  };

  for (int f = 0; f < factors; ++f) {
    for (int g = f + 1; g < factors; ++g) {
      for (int a = 0; a < levels[f]; ++a) {
        for (int b = 0; b < levels[g]; ++b) {
          if (!pair(f, a, g, b)) continue;
          Choice row(levels.size(), -1);
          row[f] = a;
          row[g] = b;
          if (!complete(row)) continue;
          for (int h = 0; h < factors; ++h) {
            for (int i = h + 1; i < factors; ++i) pair(h, row[h], i, row[i]) = 0;
          }
          rows.push_back(row);
        }
      }
    }
  }
  return rows;
}

}  // namespace greyhound::test
