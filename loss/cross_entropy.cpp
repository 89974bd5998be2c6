#include <greyhound/loss/cross_entropy.h>

#include <greyhound/loss/row_arguments.h>

namespace greyhound::loss {

std::size_t cross_entropy_workspace_bytes(const Context&, std::int64_t rows) {
  std::size_t bytes = 0;
  RowResults::make(rows, [&](DType dtype, const Shape& shape) {
    bytes += Workspace::size(dtype, shape);
    return Tensor();
  });
  return bytes;
}

void cross_entropy(const Context& context, const ConstTensor& logits, const ConstTensor& targets,
                   const Tensor& grad_logits, const CrossEntropyOptions& options, Workspace& workspace, LossSums& sums,
                   const RowOutputs& rows, std::int64_t vocab) {
  require(logits.shape.rank() >= 2, "logits: expected [N, P], got ", to_string(logits.shape));
  require(!grad_logits || grad_logits.shape == logits.shape, "grad_logits: expected the logits' shape ",
          to_string(logits.shape), ", got ", to_string(grad_logits.shape));
  const Workspace::Scope scope(workspace);
  const RowResults results =
      RowResults::make(logits.rows(), [&](DType dtype, const Shape& shape) { return workspace.take(dtype, shape); });
  RowArguments arguments(targets, logits.rows(), vocab == 0 ? logits.columns() : vocab, options, rows, results);
  if (grad_logits) arguments.prepare_denominator(context);
  cross_entropy_rows(context, arguments.range(0, as_matrix(logits), grad_logits ? as_matrix(grad_logits) : Tensor()));
  arguments.add_to(context, sums);
}

void cross_entropy_with_grad(const Context& context, const Tensor& logits, const ConstTensor& targets,
                             const CrossEntropyOptions& options, Workspace& workspace, LossSums& sums,
                             const RowOutputs& rows, std::int64_t vocab) {
  cross_entropy(context, logits, targets, logits, options, workspace, sums, rows, vocab);
}

void cross_entropy_with_grad(const Context& context, const Tensor& logits, const ConstTensor& targets,
                             Workspace& workspace, LossSums& sums) {
  CrossEntropyOptions options;
  options.reduction = Reduction::sum;
  cross_entropy_with_grad(context, logits, targets, options, workspace, sums);
}

}  // namespace greyhound::loss
