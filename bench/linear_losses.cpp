// The chunked linear cross-entropy: bound by its products, so those of the unchunked shape are the floor.
#include "loss.h"
#include "random_data.h"

#include <greyhound/core/arena.h>
#include <greyhound/kernels/matmul.h>
#include <greyhound/kernels/matmul_choices.h>
#include <greyhound/loss/loss.h>
#include <greyhound/loss/tune.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

namespace greyhound::bench {

namespace {

struct Planned {
  Budget budget;
  bool gradients;
  loss::Plan plan;
};

std::vector<Planned> plans_of(const Context& context, const LinearShape& shape, DType dtype,
                              const std::vector<Budget>& budgets) {
  const double logits_bytes = static_cast<double>(shape.tokens * shape.vocab) * static_cast<double>(size_of(dtype));
  std::vector<Planned> plans;
  for (const Budget& budget : budgets) {
    for (bool gradients : {true, false}) {
      loss::PlanOptions options;
      options.grad_input = options.grad_weight = gradients;
      if (budget.fraction > 0) {
        options.max_workspace_bytes = static_cast<std::size_t>(budget.fraction * logits_bytes) + (64u << 20);
      }
      const loss::LinearShape planned{shape.tokens, shape.hidden, shape.vocab, dtype};
      plans.push_back({budget, gradients, loss::plan_chunked_linear_loss(context, planned, options)});
    }
  }
  return plans;
}

// The products of the unchunked shape: logits, grad_input, grad_weight.
std::vector<Matmul> unchunked(const Tensor& inputs, const Tensor& weight, const Tensor& logits, const Tensor& dlogits,
                              const Tensor& grad_input, const Tensor& grad_weight) {
  Matmul forward;
  forward.a = inputs, forward.b = weight, forward.out = logits, forward.transpose_b = true;
  Matmul to_input;
  to_input.a = dlogits, to_input.b = weight, to_input.out = grad_input;
  Matmul to_weight;
  to_weight.a = dlogits, to_weight.b = inputs, to_weight.out = grad_weight, to_weight.transpose_a = true;
  return {forward, to_input, to_weight};
}

// Everything that the calls of one shape and their floor need, in one arena.
class Problem {
 public:
  Problem(const Context& context, const LinearShape& shape, DType dtype, std::size_t workspace_bytes, Tuning& tuning)
      : context_(context), name_(concat(shape.tokens, "x", shape.hidden, "x", shape.vocab, " ", name_of(dtype))) {
    const auto [n, d, v] = shape;
    const auto stand_in = [&](DType type, const Shape& size) { return Tensor(nullptr, type, size, context.device()); };
    const Tensor x = stand_in(dtype, {n, d}), w = stand_in(dtype, {v, d}), z = stand_in(dtype, {n, v});
    for (const Matmul& product : unchunked(x, w, z, z, x, stand_in(DType::fp32, {v, d}))) {
      workspace_bytes = std::max(workspace_bytes, matmul_workspace_bytes(context, product));
    }
    workspace_bytes = std::max(workspace_bytes, loss::cross_entropy_workspace_bytes(context, n));

    ArenaPlan plan;
    const auto inputs = plan.add("inputs", "inputs", dtype, {n, d});
    const auto weight = plan.add("inputs", "weight", dtype, {v, d});
    const auto targets = plan.add("inputs", "targets", DType::int32, {n});
    const auto logits = plan.add("floor", "logits", dtype, {n, v});
    const auto dlogits = plan.add("floor", "dlogits", dtype, {n, v});
    const auto grad_input = plan.add("gradients", "grad_input", dtype, {n, d});
    const auto grad_weight = plan.add("gradients", "grad_weight", DType::fp32, {v, d});
    const auto sums = plan.add("scratch", "sums", DType::uint8, {static_cast<std::int64_t>(loss::LossSums::bytes)});
    const auto scratch = plan.add("scratch", "workspace", DType::uint8, {static_cast<std::int64_t>(workspace_bytes)});
    arena_ = Arena(context, plan);
    inputs_ = arena_[inputs], weight_ = arena_[weight], targets_ = arena_[targets], logits_ = arena_[logits];
    dlogits_ = arena_[dlogits], grad_input_ = arena_[grad_input], grad_weight_ = arena_[grad_weight];
    sums_ = arena_[sums], scratch_ = arena_[scratch];
    fill_random(context, inputs_, 1.0f, 1);
    fill_random(context, weight_, 1.0f / std::sqrt(static_cast<float>(d)), 2);
    fill_random_indices(context, targets_, v, 3);
    products_ = unchunked(inputs_, weight_, logits_, dlogits_, grad_input_, grad_weight_);
    loss::LossSums(context, sums_.data).reset(context);
    prepare_floor(tuning);
  }

  const std::string& name() const { return name_; }

  void call(const Planned& planned) {
    Workspace workspace(scratch_);
    loss::LossSums sums(context_, sums_.data);
    loss::LinearGradients to;
    if (planned.gradients) to = {loss::overwrite(grad_input_), loss::overwrite(grad_weight_), {}};
    loss::chunked_linear_cross_entropy(context_, planned.plan, {inputs_, weight_, targets_, {}}, {}, to, workspace,
                                       sums);
  }

  void floor(bool gradients) {
    for (std::size_t i = 0; i < (gradients ? products_.size() : 1); ++i) {
      Workspace workspace(scratch_);
      matmul(context_, products_[i], workspace);
    }
  }

 private:
  // The floor's products run by the best of the library's candidates, and on the gradient of these very logits: numbers
  // of another kind draw another power.
  void prepare_floor(Tuning& tuning) {
    tuning.once(name_ + " unchunked, logits", [&] { tune_product(0); });
    floor(false);
    Workspace workspace(scratch_);
    loss::LossSums sums(context_, sums_.data);
    loss::cross_entropy(context_, logits_, targets_, dlogits_, {}, workspace, sums);
    context_.synchronize();
    tuning.once(name_ + " unchunked, gradients", [&] {
      tune_product(1);
      tune_product(2);
    });
  }

  void tune_product(std::size_t product) {
    Workspace workspace(scratch_);
    tune_matmul(context_, products_[product], workspace);
  }

  const Context& context_;
  const std::string name_;
  Arena arena_;
  Tensor inputs_, weight_, targets_, logits_, dlogits_, grad_input_, grad_weight_, sums_, scratch_;
  std::vector<Matmul> products_;
};

}  // namespace

void chunked_linear_cross_entropy(const Context& context, const LinearShape& shape, const std::vector<Budget>& budgets,
                                  const LossOptions& options, const Repeats& repeats, Tuning& tuning,
                                  const RowSink& add) {
  const std::vector<Planned> plans = plans_of(context, shape, options.dtype, budgets);
  std::size_t workspace_bytes = 0;
  for (const Planned& planned : plans) workspace_bytes = std::max(workspace_bytes, planned.plan.workspace_bytes);
  Problem problem(context, shape, options.dtype, workspace_bytes, tuning);

  std::set<std::int64_t> tuned_with_gradients;
  for (const Planned& planned : plans) {
    const std::int64_t chunk_rows = planned.plan.chunk_rows;
    if (planned.gradients) tuned_with_gradients.insert(chunk_rows);
    // A plan with gradients has the products of one without.
    if (options.tune && (planned.gradients || tuned_with_gradients.count(chunk_rows) == 0)) {
      tuning.once(
          concat(problem.name(), " chunks of ", chunk_rows, planned.gradients ? " forward+backward" : " forward"),
          [&] { loss::tune(context, planned.plan); });
    }
    Row row;
    row.operation = "chunked_linear_cross_entropy";
    row.mode = planned.gradients ? "forward+backward" : "forward";
    row.N = shape.tokens, row.D = shape.hidden, row.V = shape.vocab;
    row.dtype = name_of(options.dtype);
    row.times = compare(
        context, [&] { problem.call(planned); }, [&] { problem.floor(planned.gradients); }, repeats);
    const double flops = (planned.gradients ? 6.0 : 2.0) * static_cast<double>(shape.tokens) *
                         static_cast<double>(shape.hidden) * static_cast<double>(shape.vocab);
    row.rate = flops * 1e-9 / row.times.work.median;
    row.workspace_bytes = planned.plan.workspace_bytes;
    row.budget = planned.budget.label;
    row.chunk_rows = planned.plan.chunk_rows, row.chunks = planned.plan.chunks;
    add(row);
  }
}

}  // namespace greyhound::bench
