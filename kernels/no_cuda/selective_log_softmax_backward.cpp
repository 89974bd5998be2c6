#include <greyhound/kernels/no_cuda/no_cuda.h>
#include <greyhound/kernels/selective_log_softmax.h>

namespace greyhound::cuda {

void selective_log_softmax_backward_rows(const Context&, const SelectiveLogSoftmaxBackward&) {
  throw_no_cuda("selective_log_softmax_backward");
}

}  // namespace greyhound::cuda
