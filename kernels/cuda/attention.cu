#include <greyhound/kernels/attention.h>

#include <greyhound/kernels/cuda/attention_forward.cuh>
#include <greyhound/kernels/cuda/attention_hopper_forward.cuh>
#include <greyhound/kernels/cuda/attention_hopper_launch.cuh>
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

template <class Tiling>
void forward_warpgroups(const Context& context, const AttentionTask<bf16>& task, const hopper::AttentionMaps& maps) {
  hopper::launch<Tiling>(context, hopper::attention_forward_kernel<Tiling>, Tiling::template shared_bytes<1>, task,
                         maps, "attention_forward");
}

// False, with nothing enqueued, where Hopper's kernels do not take the task.
bool forward_on_hopper(const Context& context, const AttentionTask<bf16>& task) {
  if (task.dropout.threshold > 0 || !hopper::is_hopper(context)) return false;
  static const bool compiled = hopper::is_compiled(hopper::attention_forward_kernel<hopper::Forward64>);
  hopper::AttentionMaps maps{};
  if (!compiled || !hopper::describe_task(maps, task)) return false;
  if (task.size <= hopper::Forward64::D) {
    forward_warpgroups<hopper::Forward64>(context, task, maps);
  } else {
    forward_warpgroups<hopper::Forward128>(context, task, maps);
  }
  return true;
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
          if (forward_on_hopper(context, task)) return;
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

std::size_t attention_workspace_bytes(const Context& context, DType dtype, std::int64_t batch, std::int64_t tokens,
                                      std::int64_t channels, std::int64_t heads) {
  std::size_t bytes = std::max(Workspace::size(DType::fp32, {batch, heads, tokens}),
                               attention_decode_workspace_bytes(batch, tokens, channels, heads));
  if (dtype == DType::bf16 && hopper::is_hopper(context)) {
    bytes = std::max(bytes, Workspace::size(DType::fp32, hopper::row_values_shape(batch, heads, tokens)));
  }
  return bytes;
}

}  // namespace greyhound::cuda
