#include <greyhound/kernels/attention.h>

#include <greyhound/kernels/no_cuda/no_cuda.h>

namespace greyhound::cuda {

void attention_forward(const Context&, const AttentionForward&, Workspace&) { throw_no_cuda("attention_forward"); }
void attention_backward(const Context&, const AttentionBackward&, Workspace&) { throw_no_cuda("attention_backward"); }
std::size_t attention_workspace_bytes(const Context&, DType, std::int64_t, std::int64_t, std::int64_t, std::int64_t) {
  throw_no_cuda("attention");
}
void attention_decode(const Context&, const AttentionDecode&, Workspace&) { throw_no_cuda("attention_decode"); }

}  // namespace greyhound::cuda
