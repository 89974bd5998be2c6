#include <greyhound/kernels/elementwise.h>

#include <greyhound/kernels/no_cuda/no_cuda.h>

namespace greyhound::cuda {

void gelu_forward(const Context&, const GeluForward&) { throw_no_cuda("gelu_forward"); }
void gelu_backward(const Context&, const GeluBackward&, Workspace&) { throw_no_cuda("gelu_backward"); }
void softcap(const Context&, const Softcap&) { throw_no_cuda("softcap"); }
void residual_forward(const Context&, const ResidualForward&) { throw_no_cuda("residual_forward"); }
void dropout_apply(const Context&, const DropoutApply&) { throw_no_cuda("dropout_apply"); }
void column_sum(const Context&, const ColumnSum&, Workspace&) { throw_no_cuda("column_sum"); }
std::size_t column_sum_workspace_bytes(const Context&, std::int64_t, std::int64_t) { throw_no_cuda("column_sum"); }
void cast(const Context&, const Cast&) { throw_no_cuda("cast"); }

}  // namespace greyhound::cuda
