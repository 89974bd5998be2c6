// Token and position embeddings.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/workspace.h>
#include <greyhound/kernels/error_word.h>

namespace greyhound {

// out[b, t] = token_weight[tokens[b, t]] + position_weight[first_position + t].
// A token outside [0, V) is bad data: recorded in `errors`, its row gets the position alone.
struct EmbeddingForward {
  ConstTensor tokens;           // [B, T] int32
  ConstTensor token_weight;     // [Vp, C], fp32 or bf16
  ConstTensor position_weight;  // [T_max, C]; optional (models with other positions)
  Tensor out;                   // [B * T, C]
  std::int64_t vocab = 0;       // V <= Vp
  std::int64_t first_position = 0;
  ErrorWord* errors = nullptr;  // on the device; optional
};
GREYHOUND_API void embedding_forward(const Context& context, const EmbeddingForward& args);

// grad_token[v] (+)= sum of grad_out over the rows whose token is v, in order of rows; grad_position[t] (+)= sum
// over b. With accumulate_token false the whole of grad_token is overwritten, rows without a token with 0.
struct EmbeddingBackward {
  ConstTensor grad_out;  // [B * T, C], fp32 or bf16
  ConstTensor tokens;    // [B, T] int32
  Tensor grad_token;     // [Vp, C] fp32
  Tensor grad_position;  // [T_max, C] fp32; optional. Rows from T on are left (accumulate) or zeroed
  std::int64_t vocab = 0;
  bool accumulate_token = false;
  bool accumulate_position = false;
};
GREYHOUND_API void embedding_backward(const Context& context, const EmbeddingBackward& args, Workspace& workspace);
GREYHOUND_API std::size_t embedding_backward_workspace_bytes(const Context& context, std::int64_t rows,
                                                             std::int64_t vocab, std::int64_t channels);

namespace cpu {
void embedding_forward(const Context&, const EmbeddingForward&);
void embedding_backward(const Context&, const EmbeddingBackward&, Workspace&);
std::size_t embedding_backward_workspace_bytes(const Context&, std::int64_t rows, std::int64_t vocab,
                                               std::int64_t channels);
}  // namespace cpu
namespace cuda {
void embedding_forward(const Context&, const EmbeddingForward&);
void embedding_backward(const Context&, const EmbeddingBackward&, Workspace&);
std::size_t embedding_backward_workspace_bytes(const Context&, std::int64_t rows, std::int64_t vocab,
                                               std::int64_t channels);
}  // namespace cuda

}  // namespace greyhound
