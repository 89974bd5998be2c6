#include <greyhound/kernels/optimizer.h>

#include <greyhound/kernels/no_cuda/no_cuda.h>

namespace greyhound::cuda {

void gradient_norm(const Context&, const GradientNorm&, Workspace&) { throw_no_cuda("gradient_norm"); }
std::size_t gradient_norm_workspace_bytes(const Context&, std::int64_t) { throw_no_cuda("gradient_norm"); }
void adamw(const Context&, const AdamW&) { throw_no_cuda("adamw"); }

}  // namespace greyhound::cuda
