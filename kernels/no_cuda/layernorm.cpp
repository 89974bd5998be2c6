#include <greyhound/kernels/layernorm.h>

#include <greyhound/kernels/no_cuda/no_cuda.h>

namespace greyhound::cuda {

void layernorm_forward(const Context&, const LayerNormForward&) { throw_no_cuda("layernorm_forward"); }
void residual_layernorm(const Context&, const ResidualLayerNorm&) { throw_no_cuda("residual_layernorm"); }
void layernorm_backward(const Context&, const LayerNormBackward&, Workspace&) { throw_no_cuda("layernorm_backward"); }
std::size_t layernorm_backward_workspace_bytes(const Context&, std::int64_t, std::int64_t) {
  throw_no_cuda("layernorm_backward");
}

}  // namespace greyhound::cuda
