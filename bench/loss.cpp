#include "loss.h"

#include <greyhound/core/error.h>

#include <algorithm>
#include <array>

namespace greyhound::bench {

namespace {

const std::vector<Budget> default_budget{{0, "default"}};
const std::vector<Budget> all_budgets{{0, "default"}, {0.5, "1/2"}, {0.25, "1/4"}, {0.125, "1/8"}};
constexpr std::array<std::int64_t, 5> large_vocabs{65536, 100352, 128256, 152064, 200064};

// The shapes that this project sets itself limits for.
LossWork limits() {
  LossWork work;
  for (std::int64_t vocab : {32000, 50304, 65536, 100352, 128256, 152064, 200064}) {
    work.cross_entropy_with_grad.push_back({1, 8192, vocab});
    work.selective_log_softmax.push_back({1, 8192, vocab});
  }
  work.chunked_linear_cross_entropy = {{8192, 768, 50304},   {8192, 1024, 128256}, {8192, 2048, 128256},
                                       {8192, 4096, 128256}, {8192, 4096, 32000},  {8192, 8192, 128256}};
  work.budgets = all_budgets;
  work.repeats = {0.4, 7, 300};
  return work;
}

LossWork sweep() {
  LossWork work;
  for (std::int64_t rows : {2048, 4096, 8192}) {
    for (std::int64_t vocab : large_vocabs) {
      work.cross_entropy_with_grad.push_back({1, rows, vocab});
      work.selective_log_softmax.push_back({8, rows, vocab});
    }
  }
  for (std::int64_t hidden : {1024, 2048, 4096, 8192}) {
    for (std::int64_t vocab : large_vocabs) work.chunked_linear_cross_entropy.push_back({8192, hidden, vocab});
  }
  work.budgets = default_budget;
  work.repeats = {0.15, 5, 100};
  return work;
}

}  // namespace

LossWork loss_work(const std::vector<LinearShape>& shapes) {
  LossWork work;
  for (const LinearShape& shape : shapes) {
    work.cross_entropy_with_grad.push_back({1, shape.tokens, shape.vocab});
    work.selective_log_softmax.push_back({1, shape.tokens, shape.vocab});
  }
  work.chunked_linear_cross_entropy = shapes;
  work.budgets = {{0, "default"}, {0.25, "1/4"}};
  return work;
}

LossWork loss_set(const std::string& name) {
  if (name == "limits") return limits();
  if (name == "sweep") return sweep();
  require(name == "small", "--set ", name, ": expected limits, sweep or small");
  return loss_work({{768, 128, 256}, {256, 768, 50304}});
}

void loss(const Context& context, const LossWork& work, const LossOptions& options, Tuning& tuning,
          const RowSink& add) {
  const auto wanted = [&](const char* operation) {
    return options.operations.empty() ||
           std::find(options.operations.begin(), options.operations.end(), operation) != options.operations.end();
  };
  if (wanted("cross_entropy_with_grad")) {
    for (const RowShape& shape : work.cross_entropy_with_grad) {
      add(cross_entropy_with_grad(context, shape, options.dtype, work.repeats));
    }
  }
  if (wanted("selective_log_softmax")) {
    for (const RowShape& shape : work.selective_log_softmax) {
      add(selective_log_softmax(context, shape, options.dtype, work.repeats));
    }
  }
  if (wanted("chunked_linear_cross_entropy")) {
    for (const LinearShape& shape : work.chunked_linear_cross_entropy) {
      chunked_linear_cross_entropy(context, shape, work.budgets, options, work.repeats, tuning, add);
    }
  }
}

}  // namespace greyhound::bench
