#include <greyhound/kernels/scale.h>

#include <greyhound/core/cuda/device_scope.h>
#include <greyhound/kernels/cuda/rows.h>
#include <greyhound/kernels/cuda/packed.cuh>

namespace greyhound::cuda {

namespace {

constexpr int scale_threads = 256;

// Reads and writes the data once; a grid stride over packs of 16 bytes, pack by pack of each row.
template <class T>
__global__ void __launch_bounds__(scale_threads)
    scale_kernel(T* data, std::int64_t stride, std::int64_t rows, int columns, const float* scalar) {
  const float factor = *scalar;
  if (factor == 1.0f) return;
  constexpr int size = packed_size<T>;
  const std::int64_t packs_per_row = (columns + size - 1) / size;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * scale_threads;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(scale_threads) + threadIdx.x; i < rows * packs_per_row;
       i += step) {
    T* row = data + i / packs_per_row * stride;
    const int first = static_cast<int>(i % packs_per_row) * size;
    const bool aligned = is_packed_aligned(row);
    float values[size];
    unpack(load_packed<T>(row, first, columns, aligned), values);
#pragma unroll
    for (float& value : values) value = factor == 0.0f ? 0.0f : value * factor;
    store_packed(row, first, columns, aligned, values);
  }
}

}  // namespace

void scale(const Context& context, const Scale& args) {
  const DeviceScope device(context);
  const bool dense = args.data.contiguous();
  dispatch(args.data.dtype, "scale: data", [&](auto tag) {
    using T = typename decltype(tag)::type;
    // Dense data is cut into rows of its own, so that any shape is read in full packs.
    constexpr std::int64_t dense_columns = 1 << 16;
    const auto launch = [&](T* data, std::int64_t stride, std::int64_t rows, std::int64_t columns) {
      if (rows == 0 || columns == 0) return;
      const std::int64_t packs = rows * ((columns + packed_size<T> - 1) / packed_size<T>);
      const std::int64_t blocks = std::min<std::int64_t>((packs + scale_threads - 1) / scale_threads, 8192);
      scale_kernel<T><<<static_cast<unsigned>(blocks), scale_threads, 0, stream_of(context.stream())>>>(
          data, stride, rows, static_cast<int>(columns), args.scalar.as<float>());
      check_launch("scale");
    };
    if (dense) {
      const std::int64_t rows = args.data.elements() / dense_columns;
      launch(args.data.as<T>(), dense_columns, rows, dense_columns);
      launch(args.data.as<T>() + rows * dense_columns, dense_columns, 1, args.data.elements() % dense_columns);
    } else {
      require_row_sizes(1, args.data.columns(), "scale");
      launch(args.data.as<T>(), args.data.row_stride, args.data.rows(), args.data.columns());
    }
  });
}

}  // namespace greyhound::cuda
