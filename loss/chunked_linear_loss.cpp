#include <greyhound/loss/chunked_linear_loss.h>

#include <greyhound/kernels/elementwise.h>
#include <greyhound/loss/chunked_call.h>

namespace greyhound::loss {

void chunked_linear_loss(const Context& context, const Plan& plan, const ProjectionInputs& inputs,
                         const RowLoss& row_loss, const LinearGradients& gradients, Workspace& workspace,
                         LossSums& sums) {
  require(static_cast<bool>(row_loss), "chunked_linear_loss: row_loss: expected a function, got an empty one");
  ChunkedCall call(context, plan, inputs, gradients, workspace);
  const RowResults results = call.row_results();
  call.run({}, [&](std::int64_t first, const Tensor& tile) {
    row_loss(context, {tile, results.ce.slice(first, Shape{tile.rows()}), first, call.wants_gradients()});
  });

  // Every row counts: targets of class 0. The zero bytes of the z-losses, of which there are none, serve as both.
  zero(context, results.z);
  const Tensor class_zero(results.z.data, DType::int32, results.z.shape, context.device());
  sum_rows(context, {results.ce, results.z, {}, {class_zero, plan.shape.vocab, -100}, sums.data()});
}

}  // namespace greyhound::loss
