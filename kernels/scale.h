// Multiplication of a tensor by a scalar in device memory.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/tensor.h>

namespace greyhound {

// data = data * scalar, rounded once. Nothing is read or written where the scalar is exactly 1, which the
// device itself sees: the host never waits for the value. A scalar of 0 gives exact zeros also where data is not
// finite.
struct Scale {
  Tensor data;         // [rows, columns] fp32, bf16 or fp16; any row stride
  ConstTensor scalar;  // [1] fp32
};
GREYHOUND_API void scale(const Context& context, const Scale& args);

namespace cpu {
void scale(const Context&, const Scale&);
}
namespace cuda {
void scale(const Context&, const Scale&);
}

}  // namespace greyhound
