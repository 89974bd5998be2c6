#include <greyhound/kernels/scale.h>

#include <greyhound/kernels/no_cuda/no_cuda.h>

namespace greyhound::cuda {

void scale(const Context&, const Scale&) { throw_no_cuda("scale"); }

}  // namespace greyhound::cuda
