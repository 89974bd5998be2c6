#include <greyhound/loss/chunked_linear_cross_entropy.h>

#include <greyhound/kernels/elementwise.h>
#include <greyhound/kernels/linear_loss.h>
#include <greyhound/loss/chunk_schedule.h>

#include <algorithm>

namespace greyhound::loss {

namespace {

void check_call(const Context& context, const Plan& plan, const LinearInputs& in, const LinearGradients& gradients,
                const Workspace& workspace) {
  const LinearShape& shape = plan.shape;
  const std::int64_t rows = in.inputs.rows();
  require(rows <= shape.tokens, "inputs: ", rows, " rows are more than the ", shape.tokens, " that were planned");
  require_tensor(in.inputs, "inputs", shape.dtype, Shape{rows, shape.hidden});
  require_tensor(in.weight, "weight", shape.dtype, Shape{shape.padded_vocab, shape.hidden});
  if (in.bias) {
    const DType dtype = in.bias.dtype == DType::fp32 ? DType::fp32 : shape.dtype;
    require_tensor(in.bias, "bias", dtype, Shape{shape.padded_vocab});
  }
  if (gradients.input) {
    require(plan.options.grad_input, "grad_input: the plan was made without it");
    require_tensor(gradients.input.tensor, "grad_input", shape.dtype, in.inputs.shape);
  }
  if (gradients.weight) {
    require(plan.options.grad_weight, "grad_weight: the plan was made without it");
    require_tensor(gradients.weight.tensor, "grad_weight", plan.options.grad_weight_dtype, in.weight.shape);
  }
  if (gradients.bias) {
    require(plan.options.grad_weight, "grad_bias: the plan was made without gradients of the head");
    require_tensor(gradients.bias.tensor, "grad_bias", DType::fp32, Shape{shape.padded_vocab});
  }
  const std::size_t left = workspace.bytes() - workspace.used();
  require(left >= plan.workspace_bytes, "workspace: the plan needs ", plan.workspace_bytes, " bytes, ", left,
          " are left");
  require(workspace.device() == context.device(), "workspace: is on ", to_string(workspace.device()),
          ", the context runs on ", to_string(context.device()));
}

// Zeros to rows first .. of a matrix whose rows may stand apart.
void zero_rows(const Context& context, const Tensor& matrix, std::int64_t first) {
  if (first == matrix.rows()) return;
  const Tensor rows = matrix.row_range(first, matrix.rows() - first);
  if (rows.contiguous()) return zero(context, rows);
  for (std::int64_t row = 0; row < rows.rows(); ++row) zero(context, rows.row_range(row, 1));
}

// One call: its arguments, what it took from the workspace, and how far it is.
class Call {
 public:
  Call(const Context& context, const Plan& plan, const LinearInputs& in, const CrossEntropyOptions& options,
       const LinearGradients& gradients, Workspace& workspace, const RowOutputs& outputs)
      : context_(context),
        plan_(plan),
        in_(in),
        gradients_(gradients),
        workspace_(workspace),
        buffers_(
            ChunkBuffers::make(plan, [&](DType dtype, const Shape& shape) { return workspace.take(dtype, shape); })),
        rows_(make_rows(options, outputs)) {
    weight_ = in.weight.row_range(0, plan.shape.vocab);
    if (in.bias) bias_ = in.bias.slice(0, Shape{plan.shape.vocab});
  }

  void run(LossSums& sums) {
    if (wants_gradients()) prepare_gradients();
    const std::int64_t rows = in_.inputs.rows();
    for (std::int64_t first = 0; first < rows; first += plan_.chunk_rows) {
      chunk(first, std::min(plan_.chunk_rows, rows - first));
    }
    if (gradients_.weight) finish_grad_weight();
    rows_.add_to(context_, sums);
  }

 private:
  bool wants_gradients() const { return gradients_.input || gradients_.weight || gradients_.bias; }

  // Arrays of the planned N, cut to this call's N.
  RowArguments make_rows(const CrossEntropyOptions& options, const RowOutputs& outputs) {
    const Shape rows{in_.inputs.rows()};
    RowResults results = buffers_.rows;
    for (Tensor* array : {&results.ce, &results.z, &results.weight}) *array = array->slice(0, rows);
    if (buffers_.row_upstream) buffers_.row_upstream = buffers_.row_upstream.slice(0, rows);
    return RowArguments(in_.targets, in_.inputs.rows(), plan_.shape.vocab, options, outputs, results);
  }

  void prepare_gradients() {
    rows_.prepare_denominator(context_);
    if (normalizes(plan_)) {
      const CrossEntropyOptions& options = rows_.options();
      normalize_upstream(context_, {rows_.targets(), options.class_weights, options.row_weights, options.upstream,
                                    rows_.denominator(), options.logit_scale, buffers_.row_upstream, buffers_.alpha});
      alpha_ = buffers_.alpha;
    }
    const std::int64_t vocab = plan_.shape.vocab;
    if (gradients_.weight) {
      const Tensor& buffer = gradients_.weight.tensor;
      target_ = buffers_.accumulator ? buffers_.accumulator : buffer.row_range(0, vocab);
      weight_beta_ = gradients_.weight.accumulate ? 1.0f : 0.0f;
      if (buffers_.accumulator && gradients_.weight.accumulate) {
        cast(context_, {buffer.row_range(0, vocab), buffers_.accumulator});
      }
      if (!gradients_.weight.accumulate) zero_rows(context_, buffer, in_.inputs.rows() == 0 ? 0 : vocab);
    }
    if (gradients_.bias && !gradients_.bias.accumulate) zero(context_, gradients_.bias.tensor);
  }

  void chunk(std::int64_t first, std::int64_t count) {
    const ConstTensor inputs = in_.inputs.row_range(first, count);
    const Tensor tile = buffers_.tile.row_range(0, count);
    product(logits_product(inputs, weight_, bias_, tile));

    CrossEntropyRows args = rows_.range(first, tile, wants_gradients() ? tile : Tensor());
    if (args.grad && normalizes(plan_)) {
      args.upstream = buffers_.row_upstream.slice(first, Shape{count});
      args.denominator = {};
    }
    cross_entropy_rows(context_, args);

    if (gradients_.input) {
      const Tensor grad_input = gradients_.input.tensor.row_range(first, count);
      product(grad_input_product(tile, weight_, grad_input, alpha_, gradients_.input.accumulate ? 1.0f : 0.0f));
    }
    if (gradients_.weight) {
      product(grad_weight_product(tile, valid_inputs(inputs, args.targets), target_, alpha_, weight_beta_));
      weight_beta_ = 1;
    }
    if (gradients_.bias) add_grad_bias(tile);
  }

  ConstTensor valid_inputs(const ConstTensor& inputs, const Targets& targets) {
    const Tensor valid = buffers_.valid_inputs.row_range(0, inputs.rows());
    copy_valid_rows(context_, {inputs, targets, valid});
    return valid;
  }

  // prepare_gradients has written zeros where the caller wants the old values replaced.
  void add_grad_bias(const Tensor& tile) {
    const Tensor out = gradients_.bias.tensor.slice(0, Shape{plan_.shape.vocab});
    if (normalizes(plan_)) {
      tile_column_sum(context_, {tile, out, 1, true, alpha_});
    } else {
      const Workspace::Scope scope(workspace_);
      column_sum(context_, {tile, out, true}, workspace_);
    }
  }

  void finish_grad_weight() {
    if (!buffers_.accumulator || in_.inputs.rows() == 0) return;
    cast(context_, {buffers_.accumulator, gradients_.weight.tensor.row_range(0, plan_.shape.vocab)});
  }

  void product(const Matmul& args) {
    const Workspace::Scope scope(workspace_);
    matmul(context_, args, workspace_);
  }

  const Context& context_;
  const Plan& plan_;
  const LinearInputs& in_;
  const LinearGradients& gradients_;
  Workspace& workspace_;
  ChunkBuffers buffers_;
  RowArguments rows_;
  ConstTensor weight_, bias_;  // the first V rows
  Tensor target_;              // what grad_weight's products add up in
  ConstTensor alpha_;          // what the tile has to be multiplied with; nothing: 1
  float weight_beta_ = 0;
};

}  // namespace

void chunked_linear_cross_entropy(const Context& context, const Plan& plan, const LinearInputs& inputs,
                                  const CrossEntropyOptions& options, const LinearGradients& gradients,
                                  Workspace& workspace, LossSums& sums, const RowOutputs& rows) {
  LinearInputs in = inputs;
  LinearGradients out = gradients;
  in.inputs = as_matrix(inputs.inputs);
  if (out.input) out.input.tensor = as_matrix(gradients.input.tensor);
  check_call(context, plan, in, out, workspace);
  const Workspace::Scope scope(workspace);
  Call(context, plan, in, options, out, workspace, rows).run(sums);
}

}  // namespace greyhound::loss
