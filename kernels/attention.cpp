#include <greyhound/kernels/attention.h>

#include <greyhound/kernels/backend.h>

namespace greyhound {

namespace {

void check_heads(const char* name, const ConstTensor& qkv, const ConstTensor& out, std::int64_t heads) {
  require(qkv.dtype == DType::fp32 || qkv.dtype == DType::bf16, name, ": qkv: expected fp32 or bf16, got ",
          name_of(qkv.dtype));
  require(heads > 0 && out.columns() % heads == 0, name, ": ", out.columns(), " channels do not divide among ", heads,
          " heads");
}

void check_dropout(const char* name, const Dropout& dropout) {
  require(dropout.probability >= 0 && dropout.probability < 1, name,
          ": dropout: expected a probability in [0, 1), got ", dropout.probability);
}

void check_sequences(const char* name, const ConstTensor& qkv, const ConstTensor& out, std::int64_t batch,
                     std::int64_t heads) {
  const std::int64_t rows = out.rows(), channels = out.columns();
  check_heads(name, qkv, out, heads);
  require(batch > 0 && rows % batch == 0, name, ": ", rows, " rows do not divide among a batch of ", batch);
  require_tensor(qkv, concat(name, ": qkv").c_str(), qkv.dtype, Shape{rows, 3 * channels});
  require_tensor(out, concat(name, ": out").c_str(), qkv.dtype, Shape{rows, channels});
}

}  // namespace

void attention_forward(const Context& context, const AttentionForward& args, Workspace& workspace) {
  check_sequences("attention_forward", args.qkv, args.out, args.batch, args.heads);
  check_dropout("attention_forward", args.dropout);
  if (args.lse) {
    require_tensor(args.lse, "attention_forward: lse", DType::fp32,
                   Shape{args.batch, args.heads, args.out.rows() / args.batch});
    require(args.lse.contiguous(), "attention_forward: lse: expected a contiguous tensor");
  }
  require_device(context, args.qkv, "attention_forward: qkv");
  require_device(context, args.out, "attention_forward: out");
  require_device(context, args.lse, "attention_forward: lse");
  if (args.out.elements() == 0) return;
  run_on_device(
      context, [&] { cpu::attention_forward(context, args, workspace); },
      [&] { cuda::attention_forward(context, args, workspace); });
}

void attention_backward(const Context& context, const AttentionBackward& args, Workspace& workspace) {
  check_sequences("attention_backward", args.qkv, args.out, args.batch, args.heads);
  check_dropout("attention_backward", args.dropout);
  require_tensor(args.grad_out, "attention_backward: grad_out", args.qkv.dtype,
                 Shape{args.out.rows(), args.out.columns()});
  require_tensor(args.grad_qkv, "attention_backward: grad_qkv", args.qkv.dtype,
                 Shape{args.qkv.rows(), args.qkv.columns()});
  require_tensor(args.lse, "attention_backward: lse", DType::fp32,
                 Shape{args.batch, args.heads, args.out.rows() / args.batch});
  require(args.lse.contiguous(), "attention_backward: lse: expected a contiguous tensor");
  require_device(context, args.qkv, "attention_backward: qkv");
  require_device(context, args.out, "attention_backward: out");
  require_device(context, args.lse, "attention_backward: lse");
  require_device(context, args.grad_out, "attention_backward: grad_out");
  require_device(context, args.grad_qkv, "attention_backward: grad_qkv");
  if (args.out.elements() == 0) return;
  run_on_device(
      context, [&] { cpu::attention_backward(context, args, workspace); },
      [&] { cuda::attention_backward(context, args, workspace); });
}

std::size_t attention_workspace_bytes(const Context& context, DType dtype, std::int64_t batch, std::int64_t tokens,
                                      std::int64_t channels, std::int64_t heads) {
  require(heads > 0 && channels % heads == 0, "attention: ", channels, " channels do not divide among ", heads,
          " heads");
  std::size_t bytes = 0;
  run_on_device(
      context, [&] { bytes = cpu::attention_workspace_bytes(context, dtype, batch, tokens, channels, heads); },
      [&] { bytes = cuda::attention_workspace_bytes(context, dtype, batch, tokens, channels, heads); });
  return bytes;
}

void attention_decode(const Context& context, const AttentionDecode& args, Workspace& workspace) {
  const char* name = "attention_decode";
  check_heads(name, args.qkv, args.out, args.heads);
  const std::int64_t batch = args.out.rows(), channels = args.out.columns();
  require(args.key_cache.shape.rank() == 3, name, ": key_cache: expected [batch, positions, channels], got ",
          to_string(args.key_cache.shape));
  const std::int64_t positions = args.key_cache.shape[1];
  require_tensor(args.qkv, "attention_decode: qkv", args.qkv.dtype, Shape{batch, 3 * channels});
  require_tensor(args.out, "attention_decode: out", args.qkv.dtype, Shape{batch, channels});
  require_tensor(args.key_cache, "attention_decode: key_cache", args.qkv.dtype, Shape{batch, positions, channels});
  require_tensor(args.value_cache, "attention_decode: value_cache", args.qkv.dtype, Shape{batch, positions, channels});
  require(args.position >= 0 && args.position < positions, name, ": position ", args.position, " of a cache of ",
          positions);
  require_device(context, args.qkv, "attention_decode: qkv");
  require_device(context, args.out, "attention_decode: out");
  require_device(context, args.key_cache, "attention_decode: key_cache");
  require_device(context, args.value_cache, "attention_decode: value_cache");
  if (args.out.elements() == 0) return;
  run_on_device(
      context, [&] { cpu::attention_decode(context, args, workspace); },
      [&] { cuda::attention_decode(context, args, workspace); });
}

}  // namespace greyhound
