// What the operators of a step take, in the order in which they ran, by the part of the model that called them.
#pragma once

#include <greyhound/core/stream.h>
#include <greyhound/kernels/operator_observer.h>
#include <greyhound/models/gpt.h>

#include <cstdint>
#include <string>
#include <vector>

namespace greyhound::bench {

// The sizes that a part's work follows from.
struct StepShape {
  std::int64_t batch, tokens;  // of a micro-batch
  std::int64_t channels, vocab, padded_vocab;
  std::int64_t parameters;     // elements of the block
  std::int64_t element_bytes;  // of activations
  std::int64_t rows() const { return batch * tokens; }
};

struct StepPart {
  std::string name;
  bool is_product = false;  // its work is counted in operations, otherwise in bytes
  std::int64_t calls = 0;   // in a step
  double milliseconds = 0;  // in a step
  double work = 0;          // operations or bytes of a step; 0: not counted
};

// Observes the operators of a step. Each takes the time from the end of the one before it to its own end, so that the
// parts add up to the step.
class StepParts final : public OperatorObserver {
 public:
  StepParts(const Context& context, const StepShape& shape) : context_(context), shape_(shape) {}

  void begin();  // before the first operator of a step
  void enqueued(const Context& context, const OperatorCall& call) override;
  // Of the steps since the last call, without the first `skipped`: in milliseconds of one of the `steps` others, the
  // parts in the order of their first call.
  std::vector<StepPart> take(int skipped, int steps);

 private:
  struct Mark {
    Event event;
    OperatorCall call;
  };
  void record(const OperatorCall& call);

  Context context_;
  StepShape shape_;
  std::vector<Mark> marks_;
  std::size_t used_ = 0;
};

}  // namespace greyhound::bench
