// Who wants to know which operators run, and in which order: profilers.
#pragma once

#include <greyhound/core/context.h>

#include <cstdint>

namespace greyhound {

struct OperatorCall {
  const char* name;                  // of the function: "layernorm_forward"
  std::int64_t m = 0, n = 0, k = 0;  // of a matrix product, as in Matmul
  bool transpose_a = false, transpose_b = false;
};

class GREYHOUND_API OperatorObserver {
 public:
  virtual ~OperatorObserver();
  // The call's work was enqueued on the context's stream; on the CPU it is done.
  virtual void enqueued(const Context& context, const OperatorCall& call) = 0;
};

// Of the operators that the calling host thread runs from now on; nullptr: nobody. Returns who it was before.
GREYHOUND_API OperatorObserver* observe_operators(OperatorObserver* observer);

namespace detail {
// Asked at every call of an operator.
GREYHOUND_API OperatorObserver* current_operator_observer();
}  // namespace detail

}  // namespace greyhound
