#include <greyhound/kernels/embedding.h>

#include <greyhound/kernels/argument_checks.h>

namespace greyhound {

void embedding_forward(const Context& context, const EmbeddingForward& args) {
  const ConstTensor& weight = args.token_weight;
  const std::int64_t rows = args.tokens.elements(), channels = weight.columns();
  require_vector(context, args.tokens, "embedding_forward: tokens", DType::int32, rows);
  require_fp32_or_bf16(weight, "embedding_forward: token_weight");
  require_matrix(context, weight, "embedding_forward: token_weight", weight.dtype, weight.rows(), channels);
  require(args.vocab >= 1 && args.vocab <= weight.rows(), "embedding_forward: vocab ", args.vocab,
          " does not fit token_weight of ", weight.rows(), " rows");
  if (args.position_weight) {
    const std::int64_t positions = args.position_weight.rows(), tokens = args.tokens.columns();
    require_matrix(context, args.position_weight, "embedding_forward: position_weight", weight.dtype, positions,
                   channels);
    require(args.first_position >= 0 && args.first_position <= positions - tokens, "embedding_forward: positions ",
            args.first_position, " to ", args.first_position + tokens, " of ", positions);
  }
  require_matrix(context, args.out, "embedding_forward: out", weight.dtype, rows, channels);
  run_on_device(
      context, [&] { cpu::embedding_forward(context, args); }, [&] { cuda::embedding_forward(context, args); });
}

void embedding_backward(const Context& context, const EmbeddingBackward& args, Workspace& workspace) {
  const std::int64_t rows = args.tokens.elements(), channels = args.grad_token.columns();
  require_vector(context, args.tokens, "embedding_backward: tokens", DType::int32, rows);
  require_fp32_or_bf16(args.grad_out, "embedding_backward: grad_out");
  require_matrix(context, args.grad_out, "embedding_backward: grad_out", args.grad_out.dtype, rows, channels);
  require_matrix(context, args.grad_token, "embedding_backward: grad_token", DType::fp32, args.grad_token.rows(),
                 channels);
  require(args.vocab >= 1 && args.vocab <= args.grad_token.rows(), "embedding_backward: vocab ", args.vocab,
          " does not fit grad_token of ", args.grad_token.rows(), " rows");
  if (args.grad_position) {
    const std::int64_t positions = args.grad_position.rows();
    require_matrix(context, args.grad_position, "embedding_backward: grad_position", DType::fp32, positions, channels);
    require(args.tokens.columns() <= positions, "embedding_backward: ", args.tokens.columns(), " positions, but ",
            positions, " rows of grad_position");
  }
  run_on_device(
      context, [&] { cpu::embedding_backward(context, args, workspace); },
      [&] { cuda::embedding_backward(context, args, workspace); });
}

std::size_t embedding_backward_workspace_bytes(const Context& context, std::int64_t rows, std::int64_t vocab,
                                               std::int64_t channels) {
  return context.device().is_cuda() ? cuda::embedding_backward_workspace_bytes(context, rows, vocab, channels)
                                    : cpu::embedding_backward_workspace_bytes(context, rows, vocab, channels);
}

}  // namespace greyhound
