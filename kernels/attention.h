// Causal multi-head self-attention with an online softmax: T. Dao, D. Y. Fu, S. Ermon, A. Rudra, C. Re,
// "FlashAttention", 2022. The T x T scores never exist as a whole.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/workspace.h>
#include <greyhound/kernels/elementwise.h>

namespace greyhound {

// For each batch b, head h and position t, with head size hs = C / heads and scale = 1 / sqrt(hs):
// out[t] = sum over s <= t of dropout(softmax_s(scale * q[t] . k[s])) * v[s].
// Q, K and V are read from the packed projection, [.., 0..C), [.., C..2C), [.., 2C..3C), head h in columns
// h * hs .. (h + 1) * hs of each. Dropout of the weight at (row, head, s): word s % 4 of Philox at counter
// (low = head << 32 | s / 4, high = first_row + row), row = b * T + t.
// On CUDA heads have at most 128 channels; bf16 whose heads and rows are whole pieces of 16 bytes takes tensor cores,
// with weights rounded to bf16; without dropout, on compute capability 9.0, in code compiled for 90a, by Hopper's
// products of warpgroups. What is not finite in a key (on CUDA: in a value as well) never reaches an earlier
// query.
struct AttentionForward {
  ConstTensor qkv;  // [B * T, 3 C], fp32 or bf16
  Tensor out;       // [B * T, C], qkv's dtype
  Tensor lse;       // [B, heads, T] fp32: log-sum-exp of the scaled scores, for backward; optional
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  Dropout dropout;
};
GREYHOUND_API void attention_forward(const Context& context, const AttentionForward& args, Workspace& workspace);

// Gradient of the above; scores are recomputed from qkv and lse.
struct AttentionBackward {
  ConstTensor grad_out;  // [B * T, C]
  ConstTensor qkv, out;  // as in forward
  ConstTensor lse;       // [B, heads, T] fp32
  Tensor grad_qkv;       // [B * T, 3 C], overwritten
  std::int64_t batch = 0;
  std::int64_t heads = 0;
  Dropout dropout;
};
GREYHOUND_API void attention_backward(const Context& context, const AttentionBackward& args, Workspace& workspace);

// Bytes for forward, for backward, and for decode with caches of `tokens` positions (the largest of them).
GREYHOUND_API std::size_t attention_workspace_bytes(const Context& context, DType dtype, std::int64_t batch,
                                                    std::int64_t tokens, std::int64_t channels, std::int64_t heads);

// One new position of generation: stores k and v of `qkv` [B, 3 C] at `position` of the caches, then attends
// over positions 0..position. No dropout.
struct AttentionDecode {
  ConstTensor qkv;     // [B, 3 C]
  Tensor key_cache;    // [B, T_max, C], qkv's dtype
  Tensor value_cache;  // [B, T_max, C]
  Tensor out;          // [B, C]
  std::int64_t heads = 0;
  std::int64_t position = 0;  // < T_max
};
GREYHOUND_API void attention_decode(const Context& context, const AttentionDecode& args, Workspace& workspace);

namespace cpu {
void attention_forward(const Context&, const AttentionForward&, Workspace&);
void attention_backward(const Context&, const AttentionBackward&, Workspace&);
std::size_t attention_workspace_bytes(const Context&, DType, std::int64_t batch, std::int64_t tokens,
                                      std::int64_t channels, std::int64_t heads);
void attention_decode(const Context&, const AttentionDecode&, Workspace&);
}  // namespace cpu
namespace cuda {
void attention_forward(const Context&, const AttentionForward&, Workspace&);
void attention_backward(const Context&, const AttentionBackward&, Workspace&);
std::size_t attention_workspace_bytes(const Context&, DType, std::int64_t batch, std::int64_t tokens,
                                      std::int64_t channels, std::int64_t heads);
void attention_decode(const Context&, const AttentionDecode&, Workspace&);
}  // namespace cuda

}  // namespace greyhound
