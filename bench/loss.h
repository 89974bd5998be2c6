// Benchmarks of the loss module against the bare work: a copy of the same bytes, and the products of the unchunked
// shape.
#pragma once

#include "report.h"
#include "tuning.h"

#include <greyhound/core/dtype.h>

namespace greyhound::bench {

struct RowShape {
  std::int64_t batch, positions, vocab;  // logits [batch, positions, vocab]
};

struct LinearShape {
  std::int64_t tokens, hidden, vocab;
};

// Of the full logits, plus 64 MiB; 0: the default plan.
struct Budget {
  double fraction = 0;
  std::string label = "default";
};

// What to measure: three operations, each on its own shapes.
struct LossWork {
  std::vector<RowShape> cross_entropy_with_grad;
  std::vector<RowShape> selective_log_softmax;
  std::vector<LinearShape> chunked_linear_cross_entropy;
  std::vector<Budget> budgets;  // of the chunked calls
  Repeats repeats;
};

// "limits", "sweep", "small".
LossWork loss_set(const std::string& name);

// All three operations on one shape.
LossWork loss_work(const std::vector<LinearShape>& shapes);

struct LossOptions {
  DType dtype = DType::bf16;
  bool tune = true;                     // the products of the chunked calls; those of the floors are always tuned
  std::vector<std::string> operations;  // names to measure; empty: all
};

using RowSink = std::function<void(const Row&)>;

// Gives `add` each row as soon as it is measured.
void loss(const Context& context, const LossWork& work, const LossOptions& options, Tuning& tuning, const RowSink& add);

// One operation on one shape; the chunked one with each budget, with gradients and without.
Row cross_entropy_with_grad(const Context& context, const RowShape& shape, DType dtype, const Repeats& repeats);
Row selective_log_softmax(const Context& context, const RowShape& shape, DType dtype, const Repeats& repeats);
void chunked_linear_cross_entropy(const Context& context, const LinearShape& shape, const std::vector<Budget>& budgets,
                                  const LossOptions& options, const Repeats& repeats, Tuning& tuning,
                                  const RowSink& add);

}  // namespace greyhound::bench
