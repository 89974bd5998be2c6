#include <greyhound/kernels/linear_loss.h>

#include <greyhound/kernels/no_cuda/no_cuda.h>

namespace greyhound::cuda {

void copy_valid_rows(const Context&, const CopyValidRows&) { throw_no_cuda("copy_valid_rows"); }
void normalize_upstream(const Context&, const NormalizeUpstream&) { throw_no_cuda("fp16 gradients of a linear loss"); }
void normalize_grad_out(const Context&, const NormalizeGradOut&) { throw_no_cuda("fp16 gradients of a linear loss"); }
void tile_column_sum(const Context&, const TileColumnSum&) { throw_no_cuda("tile_column_sum"); }

}  // namespace greyhound::cuda
