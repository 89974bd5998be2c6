#include <greyhound/kernels/matmul_gelu.h>

#include <greyhound/kernels/no_cuda/no_cuda.h>

namespace greyhound::cuda {

void matmul_gelu_backward(const Context&, const MatmulGeluBackward&, Workspace&) {
  throw_no_cuda("matmul_gelu_backward");
}
std::size_t matmul_gelu_backward_workspace_bytes(const Context&, const MatmulGeluBackward&) {
  throw_no_cuda("matmul_gelu_backward");
}

}  // namespace greyhound::cuda
