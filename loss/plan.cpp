#include <greyhound/loss/plan.h>

#include <greyhound/kernels/elementwise.h>
#include <greyhound/loss/chunk_schedule.h>

#include <algorithm>

namespace greyhound::loss {

namespace {

// Rows of a chunk by default. On a GPU the products want about 2048 rows; on the CPU fewer will do.
std::int64_t default_chunk_rows(const Context& context) { return context.device().is_cuda() ? 2048 : 256; }

// The workspace of the products (and of the bias gradient's column sum) for a chunk of `rows` rows.
std::size_t products_bytes(const Context& context, const Plan& plan, std::int64_t rows) {
  const LinearShape& shape = plan.shape;
  const Device device = context.device();
  const auto stand_in = [&](DType dtype, const Shape& size) { return Tensor(nullptr, dtype, size, device); };
  const Tensor tile = ChunkBuffers::make(plan, stand_in).tile.row_range(0, rows);
  const Tensor inputs = stand_in(shape.dtype, Shape{rows, shape.hidden});
  const Tensor weight = stand_in(shape.dtype, Shape{shape.vocab, shape.hidden});
  const bool in_fp32 = needs_accumulator(plan.options, plan.chunks);
  const Tensor grad_weight = stand_in(in_fp32 ? DType::fp32 : plan.options.grad_weight_dtype, weight.shape);

  std::size_t bytes = matmul_workspace_bytes(context, logits_product(inputs, weight, {}, tile));
  if (plan.options.grad_input) {
    bytes = std::max(bytes, matmul_workspace_bytes(context, grad_input_product(tile, weight, inputs, {}, 0)));
  }
  if (plan.options.grad_weight) {
    bytes = std::max(bytes, matmul_workspace_bytes(context, grad_weight_product(tile, inputs, grad_weight, {}, 1)));
    bytes = std::max(bytes, column_sum_workspace_bytes(context, rows, shape.vocab));
  }
  return bytes;
}

// The same for any chunk of up to chunk_rows rows: the last one of a call, or all of a call with fewer tokens. Products
// of fewer rows may take more, since they are cut otherwise; cuts change at multiples of 64 rows.
std::size_t largest_products_bytes(const Context& context, const Plan& plan) {
  constexpr std::int64_t granule = 64;
  std::size_t bytes = products_bytes(context, plan, plan.chunk_rows);
  const std::int64_t last = plan.shape.tokens % plan.chunk_rows;
  if (last > 0) bytes = std::max(bytes, products_bytes(context, plan, last));
  for (std::int64_t rows = granule; rows < plan.chunk_rows; rows += granule) {
    bytes = std::max(bytes, products_bytes(context, plan, rows));
  }
  return bytes;
}

// The plan with chunks of `chunk_rows` rows.
Plan plan_of(const Context& context, const LinearShape& shape, const PlanOptions& options, std::int64_t chunk_rows) {
  Plan plan;
  plan.shape = shape;
  plan.options = options;
  plan.chunk_rows = chunk_rows;
  plan.chunks = (shape.tokens + chunk_rows - 1) / chunk_rows;
  plan.workspace_alignment = memory_alignment;
  ChunkBuffers::make(plan, [&](DType dtype, const Shape& s) {
    plan.workspace_bytes += Workspace::size(dtype, s);
    return Tensor(nullptr, dtype, s);
  });
  plan.workspace_bytes += largest_products_bytes(context, plan);
  return plan;
}

// Chunks of at most `most` rows and nearly equal length: as many as chunks of `most` rows would make, so that the
// last one is not a sliver.
std::int64_t balanced(std::int64_t tokens, std::int64_t most) {
  if (tokens <= most) return std::max<std::int64_t>(1, tokens);
  const std::int64_t chunks = (tokens + most - 1) / most;
  const std::int64_t rows = (tokens + chunks - 1) / chunks;
  constexpr std::int64_t granule = 64;
  const std::int64_t rounded = (rows + granule - 1) / granule * granule;
  return rounded <= most ? rounded : rows;
}

// The longest chunks whose workspace fits the budget.
Plan plan_within(const Context& context, const LinearShape& shape, const PlanOptions& options) {
  const std::size_t budget = options.max_workspace_bytes;
  const std::int64_t tokens = std::max<std::int64_t>(1, shape.tokens);
  const Plan whole = plan_of(context, shape, options, tokens), smallest = plan_of(context, shape, options, 1);
  // One chunk needs no accumulator for grad_weight, so that it may fit where several do not.
  if (whole.workspace_bytes <= budget) {
    const Plan usual = plan_of(context, shape, options, balanced(shape.tokens, default_chunk_rows(context)));
    return usual.workspace_bytes < whole.workspace_bytes ? usual : whole;
  }
  require(smallest.workspace_bytes <= budget, "plan_chunked_linear_loss: max_workspace_bytes ", budget,
          " is less than chunks of one row need; the smallest that works is ",
          std::min(smallest.workspace_bytes, whole.workspace_bytes));
  std::int64_t fits = 1, too_many = tokens;
  while (too_many - fits > 1) {
    const std::int64_t middle = fits + (too_many - fits) / 2;
    (plan_of(context, shape, options, middle).workspace_bytes <= budget ? fits : too_many) = middle;
  }
  const std::int64_t most = std::min(fits, default_chunk_rows(context));
  const Plan plan = plan_of(context, shape, options, balanced(shape.tokens, most));
  return plan.workspace_bytes <= budget ? plan : plan_of(context, shape, options, most);
}

}  // namespace

Plan plan_chunked_linear_loss(const Context& context, const LinearShape& given, const PlanOptions& options) {
  LinearShape shape = given;
  if (shape.padded_vocab == 0) shape.padded_vocab = shape.vocab;
  require(shape.tokens >= 0 && shape.hidden >= 1 && shape.vocab >= 1,
          "plan_chunked_linear_loss: expected tokens >= 0, "
          "hidden >= 1 and vocab >= 1, got ",
          shape.tokens, ", ", shape.hidden, " and ", shape.vocab);
  require(shape.padded_vocab >= shape.vocab, "plan_chunked_linear_loss: padded_vocab ", shape.padded_vocab,
          " is less than vocab ", shape.vocab);
  dispatch(shape.dtype, "plan_chunked_linear_loss: dtype", [](auto) {});
  require(options.grad_weight_dtype == DType::fp32 || options.grad_weight_dtype == shape.dtype,
          "plan_chunked_linear_loss: grad_weight_dtype: expected fp32 or ", name_of(shape.dtype), ", got ",
          name_of(options.grad_weight_dtype));
  require(options.max_workspace_bytes == 0 || options.chunk_rows == 0,
          "plan_chunked_linear_loss: give max_workspace_bytes or chunk_rows, not both");
  require(options.chunk_rows >= 0, "plan_chunked_linear_loss: chunk_rows ", options.chunk_rows);
  if (options.max_workspace_bytes > 0) return plan_within(context, shape, options);
  if (options.chunk_rows > 0) {
    return plan_of(context, shape, options,
                   std::clamp<std::int64_t>(options.chunk_rows, 1, std::max<std::int64_t>(1, shape.tokens)));
  }
  return plan_of(context, shape, options, balanced(shape.tokens, default_chunk_rows(context)));
}

}  // namespace greyhound::loss
