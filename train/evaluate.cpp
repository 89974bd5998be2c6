#include <greyhound/train/evaluate.h>

namespace greyhound {

Evaluation evaluate(const Context& context, Communicator& communicator, Gpt& model, Evaluator& split,
                    BatchBuffers& buffers) {
  buffers.sums().reset(context);
  for (std::int64_t index = 0; index < split.size(); ++index) {
    model.evaluate(context, buffers.load(context, split.batch(index)), buffers.sums());
  }
  const loss::Report report = buffers.reduce_sums(context, communicator);
  return {report.mean_ce(), report.n_valid};
}

}  // namespace greyhound
