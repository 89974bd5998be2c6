#include <greyhound/kernels/cuda/attention_backward.cuh>

#include <greyhound/kernels/attention.h>

#include <greyhound/kernels/cuda/attention_hopper_backward.cuh>
#include <greyhound/kernels/cuda/attention_hopper_launch.cuh>
#include <greyhound/kernels/cuda/attention_launch.cuh>
#include <greyhound/kernels/cuda/attention_plain.cuh>

namespace greyhound::cuda {

namespace {

constexpr int dot_threads = 256;
constexpr int dot_lanes = 8;  // of a row of one head

// row_dots = sum over a head's columns of grad_out * out.
template <class T>
__global__ void __launch_bounds__(dot_threads) row_dots_kernel(const __grid_constant__ AttentionTask<T> task) {
  const int lane = threadIdx.x % dot_lanes;
  const std::int64_t all = static_cast<std::int64_t>(task.all_heads) * task.tokens;
  const std::int64_t index = (blockIdx.x * static_cast<std::int64_t>(dot_threads) + threadIdx.x) / dot_lanes;
  const std::int64_t head_row = index < all ? index : all - 1;  // every lane takes part in the shuffles
  const int which = static_cast<int>(head_row / task.tokens), row = static_cast<int>(head_row % task.tokens);
  const Place place{which, which / task.heads, which % task.heads, 0};
  const T* out = out_rows_of(task, place, row);
  const T* grad = grad_out_rows_of(task, place, row);
  const bool out_aligned = is_packed_aligned(out), grad_aligned = is_packed_aligned(grad);
  float dot = 0;
  for (int first = lane * packed_size<T>; first < task.size; first += dot_lanes * packed_size<T>) {
    float a[packed_size<T>], b[packed_size<T>];
    unpack(load_packed(out, first, task.size, out_aligned), a);
    unpack(load_packed(grad, first, task.size, grad_aligned), b);
#pragma unroll
    for (int i = 0; i < packed_size<T>; ++i) dot = fmaf(a[i], b[i], dot);
  }
#pragma unroll
  for (int offset = dot_lanes / 2; offset > 0; offset /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, offset);
  if (lane == 0 && index < all) task.row_dots[index] = dot;
}

template <class KeyTiling, class QueryTiling>
void backward_tiles(const Context& context, const AttentionTask<bf16>& task) {
  const bool dropout = task.dropout.threshold > 0;
  launch_attention(context,
                   dropout ? attention_key_grads_kernel<KeyTiling, true> : attention_key_grads_kernel<KeyTiling, false>,
                   task, KeyTiling::Rows, KeyTiling::Threads, KeyTiling::shared_bytes_of_keys,
                   "attention_backward: keys and values");
  launch_attention(
      context,
      dropout ? attention_query_grads_kernel<QueryTiling, true> : attention_query_grads_kernel<QueryTiling, false>,
      task, QueryTiling::Rows, QueryTiling::Threads, QueryTiling::shared_bytes_of_queries,
      "attention_backward: queries");
}

template <class KeyTiling, class QueryTiling>
void backward_warpgroups(const Context& context, const AttentionTask<bf16>& task, const hopper::AttentionMaps& maps,
                         hopper::RowValues* row_values) {
  hopper::launch<QueryTiling>(context, hopper::attention_query_grads_kernel<QueryTiling>,
                              QueryTiling::template shared_bytes<2>, task, maps, "attention_backward: queries",
                              row_values);
  hopper::launch<KeyTiling>(context, hopper::attention_key_grads_kernel<KeyTiling>, KeyTiling::template shared_bytes<2>,
                            task, maps, "attention_backward: keys and values",
                            static_cast<const hopper::RowValues*>(row_values));
}

// False, with nothing enqueued, where Hopper's kernels do not take the task.
bool backward_on_hopper(const Context& context, const AttentionTask<bf16>& task, Workspace& workspace) {
  if (task.dropout.threshold > 0 || !hopper::is_hopper(context)) return false;
  static const bool compiled = hopper::is_compiled(hopper::attention_key_grads_kernel<hopper::KeyGrads64>);
  hopper::AttentionMaps maps{};
  if (!compiled || !hopper::describe_task(maps, task)) return false;
  const Workspace::Scope scope(workspace);
  const Tensor values =
      workspace.take(DType::fp32, hopper::row_values_shape(task.all_heads / task.heads, task.heads, task.tokens));
  auto* row_values = static_cast<hopper::RowValues*>(values.data);
  if (task.size <= hopper::KeyGrads64::D) {
    backward_warpgroups<hopper::KeyGrads64, hopper::QueryGrads64>(context, task, maps, row_values);
  } else {
    backward_warpgroups<hopper::KeyGrads128, hopper::QueryGrads128>(context, task, maps, row_values);
  }
  return true;
}

template <class T, int D>
void backward_plain(const Context& context, const AttentionTask<T>& task) {
  launch_attention(context, plain_key_grads_kernel<T, D>, task, plain_rows, plain_threads, plain_shared_bytes<D>,
                   "attention_backward: keys and values");
  launch_attention(context, plain_query_grads_kernel<T, D>, task, plain_rows, plain_threads, plain_shared_bytes<D>,
                   "attention_backward: queries");
}

}  // namespace

void attention_backward(const Context& context, const AttentionBackward& args, Workspace& workspace) {
  const DeviceScope device(context);
  dispatch(args.qkv.dtype, "attention: qkv", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, bf16>) {
      AttentionTask<T> task = attention_task<T>(args.qkv, args.out, args.batch, args.heads, args.dropout);
      task.lse = const_cast<float*>(args.lse.as<float>());
      task.grad_out = args.grad_out.as<T>();
      task.grad_out_stride = args.grad_out.row_stride;
      task.grad_qkv = args.grad_qkv.as<T>();
      task.grad_qkv_stride = args.grad_qkv.row_stride;
      const bool packed = std::is_same_v<T, bf16> && has_packed_heads(args.qkv, task.size) &&
                          has_packed_heads(args.grad_out, task.size) && has_packed_heads(args.grad_qkv, task.size);
      if constexpr (std::is_same_v<T, bf16>) {
        if (packed && has_packed_heads(args.out, task.size) && backward_on_hopper(context, task, workspace)) return;
      }
      const Workspace::Scope scope(workspace);
      task.row_dots = workspace.take(DType::fp32, {args.batch, args.heads, task.tokens}).template as<float>();
      const std::int64_t dots = static_cast<std::int64_t>(task.all_heads) * task.tokens;
      const std::int64_t blocks = (dots * dot_lanes + dot_threads - 1) / dot_threads;
      row_dots_kernel<T><<<static_cast<unsigned>(blocks), dot_threads, 0, stream_of(context.stream())>>>(task);
      check_launch("attention_backward: row sums");
      if constexpr (std::is_same_v<T, bf16>) {
        if (packed) {
          if (task.size <= KeyGrads64::D) {
            backward_tiles<KeyGrads64, QueryGrads64>(context, task);
          } else {
            backward_tiles<KeyGrads128, QueryGrads128>(context, task);
          }
          return;
        }
      }
      if (task.size <= 64) {
        backward_plain<T, 64>(context, task);
      } else {
        backward_plain<T, 128>(context, task);
      }
    }
  });
}

}  // namespace greyhound::cuda
