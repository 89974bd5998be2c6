#include <greyhound/loss/chunked_call.h>

#include <greyhound/kernels/elementwise.h>
#include <greyhound/kernels/linear_loss.h>

namespace greyhound::loss {

namespace {

// Zeros to rows first .. of a matrix whose rows may stand apart.
void zero_rows(const Context& context, const Tensor& matrix, std::int64_t first) {
  if (first == matrix.rows()) return;
  const Tensor rows = matrix.row_range(first, matrix.rows() - first);
  if (rows.contiguous()) return zero(context, rows);
  for (std::int64_t row = 0; row < rows.rows(); ++row) zero(context, rows.row_range(row, 1));
}

}  // namespace

ChunkedCall::ChunkedCall(const Context& context, const Plan& plan, const ProjectionInputs& in,
                         const LinearGradients& gradients, Workspace& workspace)
    : context_(context), plan_(plan), in_(in), gradients_(gradients), workspace_(workspace), scope_(workspace) {
  in_.inputs = as_matrix(in.inputs);
  if (gradients_.input) gradients_.input.tensor = as_matrix(gradients.input.tensor);
  check();
  buffers_ = ChunkBuffers::make(plan, [&](DType dtype, const Shape& shape) { return workspace.take(dtype, shape); });
  weight_ = in_.weight.row_range(0, plan.shape.vocab);
  if (in_.bias) bias_ = in_.bias.slice(0, Shape{plan.shape.vocab});
}

void ChunkedCall::check() const {
  const LinearShape& shape = plan_.shape;
  require(rows() <= shape.tokens, "inputs: ", rows(), " rows are more than the ", shape.tokens, " that were planned");
  require_tensor(in_.inputs, "inputs", shape.dtype, Shape{rows(), shape.hidden});
  require_tensor(in_.weight, "weight", shape.dtype, Shape{shape.padded_vocab, shape.hidden});
  if (in_.bias) {
    const DType dtype = in_.bias.dtype == DType::fp32 ? DType::fp32 : shape.dtype;
    require_tensor(in_.bias, "bias", dtype, Shape{shape.padded_vocab});
  }
  if (gradients_.input) {
    require(plan_.options.grad_input, "grad_input: the plan was made without it");
    require_tensor(gradients_.input.tensor, "grad_input", shape.dtype, in_.inputs.shape);
  }
  if (gradients_.weight) {
    require(plan_.options.grad_weight, "grad_weight: the plan was made without it");
    require_tensor(gradients_.weight.tensor, "grad_weight", plan_.options.grad_weight_dtype, in_.weight.shape);
  }
  if (gradients_.bias) {
    require(plan_.options.grad_weight, "grad_bias: the plan was made without gradients of the head");
    require_tensor(gradients_.bias.tensor, "grad_bias", DType::fp32, Shape{shape.padded_vocab});
  }
  const std::size_t left = workspace_.bytes() - workspace_.used();
  require(left >= plan_.workspace_bytes, "workspace: the plan needs ", plan_.workspace_bytes, " bytes, ", left,
          " are left");
  require(workspace_.device() == context_.device(), "workspace: is on ", to_string(workspace_.device()),
          ", the context runs on ", to_string(context_.device()));
}

RowResults ChunkedCall::row_results() const {
  RowResults results = buffers_.rows;
  for (Tensor* array : {&results.ce, &results.z, &results.weight}) *array = array->slice(0, Shape{rows()});
  return results;
}

void ChunkedCall::begin_gradients() {
  const std::int64_t vocab = plan_.shape.vocab;
  if (gradients_.weight) {
    const Tensor& buffer = gradients_.weight.tensor;
    target_ = buffers_.accumulator ? buffers_.accumulator : buffer.row_range(0, vocab);
    weight_beta_ = gradients_.weight.accumulate ? 1.0f : 0.0f;
    if (buffers_.accumulator && gradients_.weight.accumulate) {
      cast(context_, {buffer.row_range(0, vocab), buffers_.accumulator});
    }
    if (!gradients_.weight.accumulate) zero_rows(context_, buffer, rows() == 0 ? 0 : vocab);
  }
  if (gradients_.bias && !gradients_.bias.accumulate) zero(context_, gradients_.bias.tensor);
}

Tensor ChunkedCall::make_logits(std::int64_t first, std::int64_t count) {
  const Tensor tile = buffers_.tile.row_range(0, count);
  product(logits_product(in_.inputs.row_range(first, count), weight_, bias_, tile));
  return tile;
}

void ChunkedCall::add_gradients(const TileGradients& of, std::int64_t first, const Tensor& tile) {
  const std::int64_t count = tile.rows();
  if (gradients_.input) {
    const Tensor grad_input = gradients_.input.tensor.row_range(first, count);
    product(grad_input_product(tile, weight_, grad_input, of.alpha, gradients_.input.accumulate ? 1.0f : 0.0f));
  }
  if (gradients_.weight) {
    const ConstTensor inputs = counted_inputs(of.counted, first, count);
    product(grad_weight_product(tile, inputs, target_, of.alpha, weight_beta_));
    weight_beta_ = 1;
  }
  if (gradients_.bias) add_grad_bias(tile, of.alpha);
}

ConstTensor ChunkedCall::counted_inputs(const Targets& counted, std::int64_t first, std::int64_t count) {
  const ConstTensor inputs = in_.inputs.row_range(first, count);
  if (counted.vocab == 0) return inputs;
  const Tensor valid = buffers_.valid_inputs.row_range(0, count);
  const Targets range{index_range(counted.index, first, count), counted.vocab, counted.ignore_index};
  copy_valid_rows(context_, {inputs, range, valid});
  return valid;
}

// begin_gradients has written zeros where the caller wants the old values replaced.
void ChunkedCall::add_grad_bias(const Tensor& tile, const ConstTensor& alpha) {
  const Tensor out = gradients_.bias.tensor.slice(0, Shape{plan_.shape.vocab});
  if (tile.dtype == DType::fp16) {
    tile_column_sum(context_, {tile, out, 1, true, alpha});
  } else {
    const Workspace::Scope scope(workspace_);
    column_sum(context_, {tile, out, true}, workspace_);
  }
}

void ChunkedCall::finish_grad_weight() {
  if (!gradients_.weight || !buffers_.accumulator || rows() == 0) return;
  cast(context_, {buffers_.accumulator, gradients_.weight.tensor.row_range(0, plan_.shape.vocab)});
}

void ChunkedCall::product(const Matmul& args) {
  const Workspace::Scope scope(workspace_);
  matmul(context_, args, workspace_);
}

}  // namespace greyhound::loss
