// The upstream gradient of callers that learn it only after the loss was computed (autograd).
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/tensor.h>

#include <initializer_list>

namespace greyhound::loss {

// Multiplies each gradient by `scalar` ([1] fp32 on the device), in one pass over each; the pass is skipped on the
// device when the scalar is 1. Gradients: fp32, bf16 or fp16; empty tensors are passed over. Callers that know the
// upstream beforehand give it in CrossEntropyOptions::upstream, which costs nothing.
GREYHOUND_API void scale_gradients(const Context& context, const ConstTensor& scalar,
                                   std::initializer_list<Tensor> gradients);

}  // namespace greyhound::loss
