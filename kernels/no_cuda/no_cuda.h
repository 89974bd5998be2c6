// What the stubs of operators without a CUDA implementation in this build say. Internal.
#pragma once

#include <greyhound/core/device.h>
#include <greyhound/core/error.h>

namespace greyhound {

[[noreturn]] inline void throw_no_cuda(const char* operation) {
  throw_usage(operation,
              ": this build has no CUDA implementation of it; run it on the CPU, or build with "
              "-DGREYHOUND_CUDA=ON where that offers one");
}

}  // namespace greyhound
