#include <greyhound/kernels/matmul_gelu.h>

#include <algorithm>

namespace greyhound::cpu {

void matmul_gelu_backward(const Context& context, const MatmulGeluBackward& args, Workspace& workspace) {
  cpu::matmul(context, detail::product_of(args), workspace);
  cpu::gelu_backward(context, detail::gelu_of(args), workspace);
}

std::size_t matmul_gelu_backward_workspace_bytes(const Context& context, const MatmulGeluBackward& args) {
  return std::max(cpu::matmul_workspace_bytes(context, detail::product_of(args)),
                  cpu::column_sum_workspace_bytes(context, args.pre_activation.rows(), args.pre_activation.columns()));
}

}  // namespace greyhound::cpu
