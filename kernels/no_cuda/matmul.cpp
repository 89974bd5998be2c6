#include <greyhound/kernels/matmul.h>

#include <greyhound/kernels/matmul_choice.h>
#include <greyhound/kernels/no_cuda/no_cuda.h>

namespace greyhound::cuda {

void matmul(const Context&, const Matmul&, Workspace&) { throw_no_cuda("matmul"); }
std::size_t matmul_workspace_bytes(const Context&, const Matmul&) { throw_no_cuda("matmul"); }
void tune_matmul(const Context&, const Matmul&, Workspace&) { throw_no_cuda("tune_matmul"); }
bool tune_new_matmuls(const Context&) { throw_no_cuda("TuneMatmuls"); }
void stop_tuning_new_matmuls(const Context&, bool) noexcept {}
std::vector<MatmulChoice> matmul_choices(const Context&) { throw_no_cuda("save_matmul_choices"); }
std::int64_t add_matmul_choices(const Context&, const std::vector<MatmulChoice>&) {
  throw_no_cuda("load_matmul_choices");
}
std::string matmul_library() { throw_no_cuda("matmul"); }

}  // namespace greyhound::cuda
