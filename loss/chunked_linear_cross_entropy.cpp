#include <greyhound/loss/chunked_linear_cross_entropy.h>

#include <greyhound/kernels/linear_loss.h>
#include <greyhound/loss/chunked_call.h>

namespace greyhound::loss {

void chunked_linear_cross_entropy(const Context& context, const Plan& plan, const LinearInputs& inputs,
                                  const CrossEntropyOptions& options, const LinearGradients& gradients,
                                  Workspace& workspace, LossSums& sums, const RowOutputs& outputs) {
  ChunkedCall call(context, plan, {inputs.inputs, inputs.weight, inputs.bias}, gradients, workspace);
  RowArguments rows(inputs.targets, call.rows(), plan.shape.vocab, options, outputs, call.row_results());
  Tensor row_upstream;
  TileGradients of;
  of.counted = rows.targets();
  if (call.wants_gradients()) rows.prepare_denominator(context);
  if (call.normalizes()) {
    row_upstream = call.buffers().row_upstream.slice(0, Shape{call.rows()});
    normalize_upstream(context, {rows.targets(), options.class_weights, options.row_weights, options.upstream,
                                 rows.denominator(), options.logit_scale, row_upstream, call.buffers().alpha});
    of.alpha = call.buffers().alpha;
  }
  call.run(of, [&](std::int64_t first, const Tensor& tile) {
    CrossEntropyRows args = rows.range(first, tile, call.wants_gradients() ? tile : Tensor());
    if (call.normalizes()) {
      args.upstream = row_upstream.slice(first, Shape{tile.rows()});
      args.denominator = {};
    }
    cross_entropy_rows(context, args);
  });
  rows.add_to(context, sums);
}

}  // namespace greyhound::loss
