// What the chunked linear losses need beside their three products and the row kernels. N rows, D hidden size.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/kernels/cross_entropy.h>

namespace greyhound {

// to[i] = from[i] where row i has a valid target, else 0: whatever stands in the inputs of rows that do not count (NaN
// too), the product dlogits^T x inputs cannot see it. [N, D] in one dtype (fp32, bf16, fp16); any row strides.
struct CopyValidRows {
  ConstTensor from;
  Targets targets;  // index [N], or [N, K]: a row counts where any of its K is valid
  Tensor to;
};
GREYHOUND_API void copy_valid_rows(const Context& context, const CopyValidRows& args);

// Splits the gradient's factors so that a fp16 tile can hold it. With g_i = upstream_i w_i (w as in cross_entropy.h),
// G = the largest |g_i| of a valid row:
//   row_upstream[i] = fp16_tile_scale upstream_i / (G logit_scale)   what cross_entropy_rows gets instead of upstream
//   alpha           = G logit_scale / (fp16_tile_scale denominator)  what the tile has to be multiplied with
// so that the tile holds fp16_tile_scale dz (g_i / G), whose magnitude depends on neither N, the upstream nor the
// weights. G = 0 or a denominator of 0 make both 0.
struct NormalizeUpstream {
  Targets targets;
  ConstTensor class_weights, row_weights, upstream, denominator;  // as in CrossEntropyRows; each optional
  float logit_scale = 1;
  Tensor row_upstream;  // [N] fp32
  Tensor alpha;         // [1] fp32
};
GREYHOUND_API void normalize_upstream(const Context& context, const NormalizeUpstream& args);

// The same for selective log-softmax, whose factors are grad_out. G = the largest sum_k |grad_out_ik| over the valid
// indices of a row:
//   grad_scale = fp16_tile_scale / (G logit_scale)   for selective_log_softmax_backward_rows
//   alpha      = G logit_scale / fp16_tile_scale     what the tile has to be multiplied with; both 0 where G is 0
struct NormalizeGradOut {
  Targets targets;       // index [N] or [N, K]
  ConstTensor grad_out;  // index's shape
  float logit_scale = 1;
  Tensor grad_scale;  // [1] fp32
  Tensor alpha;       // [1] fp32
};
GREYHOUND_API void normalize_grad_out(const Context& context, const NormalizeGradOut& args);

// |dz| is at most 1, or k with a z-loss: 1024 leaves a factor of 63 below fp16's largest number, and a
// probability of 6e-8 above its smallest normal one.
inline constexpr float fp16_tile_scale = 1024;

// out[j] (+)= alpha * sum over rows of tile [N, V], in row order, fp32 [V]; tile fp32, bf16 or fp16.
struct TileColumnSum {
  ConstTensor tile;
  Tensor out;
  float alpha = 1;
  bool accumulate = false;
  ConstTensor alpha_factor;  // [1] fp32 on the device, read when the kernel runs: multiplies alpha; optional
};
GREYHOUND_API void tile_column_sum(const Context& context, const TileColumnSum& args);

namespace cpu {
void copy_valid_rows(const Context&, const CopyValidRows&);
void normalize_upstream(const Context&, const NormalizeUpstream&);
void normalize_grad_out(const Context&, const NormalizeGradOut&);
void tile_column_sum(const Context&, const TileColumnSum&);
}  // namespace cpu
namespace cuda {
void copy_valid_rows(const Context&, const CopyValidRows&);
void normalize_upstream(const Context&, const NormalizeUpstream&);
void normalize_grad_out(const Context&, const NormalizeGradOut&);
void tile_column_sum(const Context&, const TileColumnSum&);
}  // namespace cuda

}  // namespace greyhound
