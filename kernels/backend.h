// How an operator chooses its backend. Every operator is a plain struct of arguments and a function
// `op(context, args)` that checks the arguments and calls cpu::op or cuda::op through run_on_device.
// Internal to kernels/.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/tensor.h>
#include <greyhound/kernels/operator_observer.h>

namespace greyhound {

// The one place where the choice is made: the context's device.
template <class Cpu, class Cuda>
void run_on_device(const Context& context, Cpu&& cpu, Cuda&& cuda, const OperatorCall& call) {
  if (context.device().is_cuda()) {
    cuda();
  } else {
    cpu();
  }
  if (OperatorObserver* observer = detail::current_operator_observer()) observer->enqueued(context, call);
}

// The call is named after the function that makes it.
template <class Cpu, class Cuda>
void run_on_device(const Context& context, Cpu&& cpu, Cuda&& cuda, const char* name = __builtin_FUNCTION()) {
  run_on_device(context, cpu, cuda, OperatorCall{name});
}

// Throws unless the tensor (when given) lives where the context runs.
inline void require_device(const Context& context, const ConstTensor& tensor, const char* name) {
  require(!tensor || tensor.device == context.device(), name, ": is on ", to_string(tensor.device),
          ", the context runs on ", to_string(context.device()));
}

}  // namespace greyhound
