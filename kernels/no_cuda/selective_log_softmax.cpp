#include <greyhound/kernels/selective_log_softmax.h>

#include <greyhound/kernels/no_cuda/no_cuda.h>

namespace greyhound::cuda {

void selective_log_softmax_rows(const Context&, const SelectiveLogSoftmax&) { throw_no_cuda("selective_log_softmax"); }
void check_indices(const Context&, const CheckIndices&) { throw_no_cuda("check_indices"); }

}  // namespace greyhound::cuda
