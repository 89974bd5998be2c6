// The losses of logits that exist: bound by the memory's bandwidth, so a copy is the floor.
#include "loss.h"
#include "random_data.h"

#include <greyhound/core/arena.h>
#include <greyhound/loss/cross_entropy.h>
#include <greyhound/loss/selective_log_softmax.h>

namespace greyhound::bench {

namespace {

struct Logits {
  Arena arena;
  Tensor logits, source;  // source: what the copies read
  Tensor targets, logprobs, sums, workspace;
};

Logits make_logits(const Context& context, const RowShape& shape, DType dtype) {
  const Shape rows{shape.batch, shape.positions}, all{shape.batch, shape.positions, shape.vocab};
  const std::size_t workspace_bytes = loss::cross_entropy_workspace_bytes(context, rows.elements());
  ArenaPlan plan;
  const auto logits = plan.add("logits", "logits", dtype, all);
  const auto source = plan.add("logits", "source of copies", dtype, all);
  const auto targets = plan.add("rows", "targets", DType::int32, rows);
  const auto logprobs = plan.add("rows", "logprobs", DType::fp32, rows);
  const auto sums = plan.add("rows", "sums", DType::uint8, {static_cast<std::int64_t>(loss::LossSums::bytes)});
  const auto workspace = plan.add("workspace", "workspace", DType::uint8, {static_cast<std::int64_t>(workspace_bytes)});
  Logits made;
  made.arena = Arena(context, plan);
  made.logits = made.arena[logits], made.source = made.arena[source], made.targets = made.arena[targets];
  made.logprobs = made.arena[logprobs], made.sums = made.arena[sums], made.workspace = made.arena[workspace];
  fill_random(context, made.source, 1.0f, 1);
  fill_random_indices(context, made.targets, shape.vocab, 2);
  copy(context, made.logits, made.source);
  return made;
}

Row describe(const char* operation, const char* mode, const RowShape& shape, DType dtype) {
  Row row;
  row.operation = operation, row.mode = mode, row.dtype = name_of(dtype);
  row.N = shape.batch * shape.positions, row.V = shape.vocab;
  return row;
}

}  // namespace

Row cross_entropy_with_grad(const Context& context, const RowShape& shape, DType dtype, const Repeats& repeats) {
  const Logits data = make_logits(context, shape, dtype);
  const Tensor logits = data.logits.reshape({shape.batch * shape.positions, shape.vocab});
  const ConstTensor targets = data.targets.reshape({shape.batch * shape.positions});
  loss::CrossEntropyOptions options;
  options.reduction = loss::Reduction::sum;
  loss::LossSums sums(context, data.sums.data);
  sums.reset(context);

  Row row = describe("cross_entropy_with_grad", "forward+backward", shape, dtype);
  // The copy that is the floor also puts back the logits which the gradient has overwritten.
  row.times = compare(
      context,
      [&] {
        Workspace workspace(data.workspace);
        loss::cross_entropy_with_grad(context, logits, targets, options, workspace, sums);
      },
      [&] { copy(context, data.logits, data.source); }, repeats);
  row.rate = 2e-9 * static_cast<double>(data.logits.bytes()) / row.times.work.median;
  row.workspace_bytes = loss::cross_entropy_workspace_bytes(context, row.N);
  return row;
}

Row selective_log_softmax(const Context& context, const RowShape& shape, DType dtype, const Repeats& repeats) {
  const Logits data = make_logits(context, shape, dtype);
  Row row = describe("selective_log_softmax", "forward", shape, dtype);
  row.times = compare(
      context, [&] { loss::selective_log_softmax(context, data.logits, data.targets, data.logprobs); },
      [&] { copy(context, data.logits, data.source); }, repeats);
  // It only reads: half of what a copy moves.
  for (double* time : {&row.times.floor.median, &row.times.floor.p10, &row.times.floor.p90}) *time *= 0.5;
  row.rate = 1e-9 * static_cast<double>(data.logits.bytes()) / row.times.work.median;
  return row;
}

}  // namespace greyhound::bench
