#include <greyhound/kernels/matmul.h>

#include <greyhound/kernels/no_cuda/no_cuda.h>

namespace greyhound::cuda {

void matmul(const Context&, const Matmul&, Workspace&) { throw_no_cuda("matmul"); }
std::size_t matmul_workspace_bytes(const Context&, const Matmul&) { throw_no_cuda("matmul"); }
std::string matmul_library() { throw_no_cuda("matmul"); }

}  // namespace greyhound::cuda
