#include "loss.h"

#include <greyhound/core/arena.h>
#include <greyhound/core/rng.h>
#include <greyhound/kernels/elementwise.h>
#include <greyhound/kernels/matmul.h>
#include <greyhound/loss/loss.h>

#include <cmath>

namespace greyhound::bench {

namespace {

// Everything one shape needs, in one arena; random values, since zeros can be faster than real data.
class Problem {
 public:
  Problem(const Context& context, const LossShape& shape, DType dtype)
      : context_(context), shape_(shape), dtype_(dtype) {
    const auto [n, d, v] = shape;
    loss::PlanOptions options;
    // A quarter of the full logits, as the smallest budget of which nothing is lost is of interest.
    options.max_workspace_bytes = static_cast<std::size_t>(n * v) * size_of(dtype) / 4 + (64u << 20);
    plan_ = loss::plan_chunked_linear_loss(context, {n, d, v, dtype}, options);

    ArenaPlan plan;
    const auto inputs = plan.add("inputs", "inputs", dtype, {n, d});
    const auto weight = plan.add("inputs", "weight", dtype, {v, d});
    const auto targets = plan.add("inputs", "targets", DType::int32, {n});
    const auto logits = plan.add("logits", "logits", dtype, {n, v});
    const auto other = plan.add("logits", "grad_logits", dtype, {n, v});
    const auto grad_input = plan.add("gradients", "grad_input", dtype, {n, d});
    const auto grad_weight = plan.add("gradients", "grad_weight", DType::fp32, {v, d});
    const auto logprobs = plan.add("gradients", "logprobs", DType::fp32, {n});
    const auto sums = plan.add("scratch", "sums", DType::uint8, {static_cast<std::int64_t>(loss::LossSums::bytes)});
    const std::size_t scratch_bytes = std::max({plan_.workspace_bytes, loss::cross_entropy_workspace_bytes(context, n),
                                                products_workspace(false), products_workspace(true)});
    const auto scratch = plan.add("scratch", "workspace", DType::uint8, {static_cast<std::int64_t>(scratch_bytes)});
    arena_ = Arena(context, plan);

    inputs_ = arena_[inputs], weight_ = arena_[weight], targets_ = arena_[targets], logits_ = arena_[logits];
    other_ = arena_[other], grad_input_ = arena_[grad_input], grad_weight_ = arena_[grad_weight];
    logprobs_ = arena_[logprobs], sums_ = arena_[sums], scratch_ = arena_[scratch];
    fill(inputs_, 1.0f, 1);
    fill(weight_, 1.0f / std::sqrt(static_cast<float>(d)), 2);
    fill(logits_, 1.0f, 3);
    std::vector<std::int32_t> host(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < host.size(); ++i)
      host[i] = static_cast<std::int32_t>(mix_key(4, i) % static_cast<std::uint64_t>(v));
    copy_bytes(context, targets_.data, targets_.device, host.data(), Device::cpu(), targets_.bytes());
    context.synchronize();
  }

  Row cross_entropy_with_grad() {
    loss::CrossEntropyOptions options;
    options.reduction = loss::Reduction::sum;
    loss::LossSums sums(context_, sums_.data);
    sums.reset(context_);
    Row row = describe("cross_entropy_with_grad", "forward+backward");
    row.milliseconds = median_milliseconds(context_, [&] {
      Workspace workspace(scratch_);
      loss::cross_entropy_with_grad(context_, logits_, targets_, options, workspace, sums);
    });
    row.floor_milliseconds = median_milliseconds(context_, [&] { copy(context_, other_, logits_); });
    row.rate = 2e-9 * static_cast<double>(logits_.bytes()) / row.milliseconds;
    row.workspace_bytes = loss::cross_entropy_workspace_bytes(context_, shape_.tokens);
    return row;
  }

  Row selective_log_softmax() {
    Row row = describe("selective_log_softmax", "forward");
    row.milliseconds =
        median_milliseconds(context_, [&] { loss::selective_log_softmax(context_, logits_, targets_, logprobs_); });
    // Reading alone, at the speed of a copy, which reads and writes.
    row.floor_milliseconds = 0.5 * median_milliseconds(context_, [&] { copy(context_, other_, logits_); });
    row.rate = 1e-9 * static_cast<double>(logits_.bytes()) / row.milliseconds;
    return row;
  }

  Row chunked(bool gradients) {
    loss::LossSums sums(context_, sums_.data);
    sums.reset(context_);
    Row row = describe("chunked_linear_cross_entropy", gradients ? "forward+backward" : "forward");
    loss::LinearGradients to;
    if (gradients) to = {loss::overwrite(grad_input_), loss::overwrite(grad_weight_), {}};
    row.milliseconds = median_milliseconds(context_, [&] {
      Workspace workspace(scratch_);
      loss::chunked_linear_cross_entropy(context_, plan_, {inputs_, weight_, targets_, {}}, {}, to, workspace, sums);
    });
    row.floor_milliseconds = median_milliseconds(context_, [&] { products(gradients); });
    const double flops = (gradients ? 6.0 : 2.0) * static_cast<double>(shape_.tokens) *
                         static_cast<double>(shape_.hidden) * static_cast<double>(shape_.vocab);
    row.rate = flops * 1e-9 / row.milliseconds;
    row.workspace_bytes = plan_.workspace_bytes;
    return row;
  }

 private:
  Row describe(const char* operation, const char* mode) const {
    Row row;
    row.operation = operation, row.mode = mode, row.dtype = name_of(dtype_);
    row.N = shape_.tokens, row.D = shape_.hidden, row.V = shape_.vocab;
    return row;
  }

  void fill(const Tensor& to, float scale, std::uint64_t stream) {
    // One block of random values, repeated: drawing 10^9 of them on the host would take longer than the benchmark.
    const std::int64_t block = std::min<std::int64_t>(to.elements(), 1 << 20);
    std::vector<bf16> half(static_cast<std::size_t>(block));
    std::vector<float> full(static_cast<std::size_t>(block));
    const Philox random{mix_key(stream, 0)};
    for (std::int64_t i = 0; i < block; ++i) {
      const Philox::Block words = random(static_cast<std::uint64_t>(i), 0);
      // Irwin-Hall: the sum of 4 uniforms, centred and scaled to unit variance, is close to a normal.
      const float sum = uniform(words[0]) + uniform(words[1]) + uniform(words[2]) + uniform(words[3]);
      full[static_cast<std::size_t>(i)] = scale * (sum - 2.0f) * 1.7320508f;
      half[static_cast<std::size_t>(i)] = from_float<bf16>(full[static_cast<std::size_t>(i)]);
    }
    const void* from = dtype_ == DType::fp32 ? static_cast<const void*>(full.data()) : half.data();
    for (std::int64_t begin = 0; begin < to.elements(); begin += block) {
      const std::int64_t count = std::min(block, to.elements() - begin);
      const Tensor part = to.slice(begin, {count});
      copy_bytes(context_, part.data, part.device, from, Device::cpu(), part.bytes());
    }
    context_.synchronize();
  }

  std::vector<Matmul> product_list(bool gradients) const {
    const auto [n, d, v] = shape_;
    Matmul forward{inputs_, weight_, logits_};
    Matmul to_input{other_, weight_, grad_input_};
    Matmul to_weight{other_, inputs_, grad_weight_};
    if (!inputs_) {  // asked for sizes, before there is memory
      const Tensor x(nullptr, dtype_, {n, d}), w(nullptr, dtype_, {v, d}), z(nullptr, dtype_, {n, v});
      forward = {x, w, z}, to_input = {z, w, x}, to_weight = {z, x, Tensor(nullptr, DType::fp32, {v, d})};
    }
    forward.transpose_b = true;
    to_weight.transpose_a = true;
    return gradients ? std::vector<Matmul>{forward, to_input, to_weight} : std::vector<Matmul>{forward};
  }

  std::size_t products_workspace(bool gradients) const {
    std::size_t bytes = 0;
    for (const Matmul& product : product_list(gradients)) {
      bytes = std::max(bytes, matmul_workspace_bytes(context_, product));
    }
    return bytes;
  }

  void products(bool gradients) {
    for (const Matmul& product : product_list(gradients)) {
      Workspace workspace(scratch_);
      matmul(context_, product, workspace);
    }
  }

  const Context& context_;
  LossShape shape_;
  DType dtype_;
  loss::Plan plan_;
  Arena arena_;
  Tensor inputs_, weight_, targets_, logits_, other_, grad_input_, grad_weight_, logprobs_, sums_, scratch_;
};

}  // namespace

std::vector<Row> loss(const Context& context, const std::vector<LossShape>& shapes, DType dtype) {
  std::vector<Row> rows;
  print_header();
  const auto add = [&](const Row& row) {
    print(row);
    rows.push_back(row);
  };
  for (const LossShape& shape : shapes) {
    Problem problem(context, shape, dtype);
    add(problem.selective_log_softmax());
    add(problem.chunked(false));
    add(problem.chunked(true));
    add(problem.cross_entropy_with_grad());
  }
  return rows;
}

}  // namespace greyhound::bench
