#include <greyhound/kernels/attention.h>

#include <greyhound/kernels/cuda/attention_forward.cuh>
#include <greyhound/kernels/cuda/attention_launch.cuh>
#include <greyhound/kernels/cuda/attention_plain.cuh>

namespace greyhound::cuda {

namespace {

template <class Tiling>
void forward_tiles(const Context& context, const AttentionTask<bf16>& task) {
  const auto kernel =
      task.dropout.threshold > 0 ? attention_forward_kernel<Tiling, true> : attention_forward_kernel<Tiling, false>;
  launch_attention(context, kernel, task, Tiling::Queries, Tiling::Threads, Tiling::shared_bytes, "attention_forward");
}

template <class T, int D>
void forward_plain(const Context& context, const AttentionTask<T>& task) {
  launch_attention(context, plain_forward_kernel<T, D>, task, plain_rows, plain_threads, plain_shared_bytes<D>,
                   "attention_forward");
}

}  // namespace

void attention_forward(const Context& context, const AttentionForward& args, Workspace&) {
  const DeviceScope device(context);
  dispatch(args.qkv.dtype, "attention: qkv", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, bf16>) {
      AttentionTask<T> task = attention_task<T>(args.qkv, args.out, args.batch, args.heads, args.dropout);
      if (args.lse) task.lse = args.lse.as<float>();
      if constexpr (std::is_same_v<T, bf16>) {
        if (has_packed_heads(args.qkv, task.size) && has_packed_heads(args.out, task.size)) {
          if (task.size <= Forward64::D) {
            forward_tiles<Forward64>(context, task);
          } else {
            forward_tiles<Forward128>(context, task);
          }
          return;
        }
      }
      if (task.size <= 64) {
        forward_plain<T, 64>(context, task);
      } else {
        forward_plain<T, 128>(context, task);
      }
    }
  });
}

std::size_t attention_workspace_bytes(const Context&, DType, std::int64_t batch, std::int64_t tokens,
                                      std::int64_t channels, std::int64_t heads) {
  const std::size_t row_dots = Workspace::size(DType::fp32, {batch, heads, tokens});
  return std::max(row_dots, attention_decode_workspace_bytes(batch, tokens, channels, heads));
}

}  // namespace greyhound::cuda
