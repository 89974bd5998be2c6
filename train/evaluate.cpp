#include <greyhound/train/evaluate.h>

namespace greyhound {

Evaluation evaluate(const Context& context, Communicator& communicator, Gpt& model, Evaluator& split,
                    BatchBuffers& buffers, const std::function<bool()>& stop) {
  buffers.sums().reset(context);
  bool stopped = false;
  for (std::int64_t index = 0; index < split.size() && !stopped; ++index) {
    model.evaluate(context, buffers.load(context, split.batch(index)), buffers.sums());
    stopped = communicator.size() == 1 && index + 1 < split.size() && stop && stop();
  }
  buffers.reduce_sums(context, communicator);
  const loss::Report report = buffers.sums().read(context);
  return {report.mean_ce(), report.n_valid, stopped};
}

}  // namespace greyhound
