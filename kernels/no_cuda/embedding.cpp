#include <greyhound/kernels/embedding.h>

#include <greyhound/kernels/no_cuda/no_cuda.h>

namespace greyhound::cuda {

void embedding_forward(const Context&, const EmbeddingForward&) { throw_no_cuda("embedding_forward"); }
void embedding_backward(const Context&, const EmbeddingBackward&, Workspace&) { throw_no_cuda("embedding_backward"); }
std::size_t embedding_backward_workspace_bytes(const Context&, std::int64_t, std::int64_t, std::int64_t) {
  throw_no_cuda("embedding_backward");
}

}  // namespace greyhound::cuda
