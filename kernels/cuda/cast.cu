// Conversions between dtypes. Contract: kernels/elementwise.h.
#include <greyhound/kernels/elementwise.h>

#include <greyhound/kernels/cuda/elementwise.cuh>

#include <type_traits>

namespace greyhound::cuda {

namespace {

constexpr int cast_threads = 256;
constexpr int group = 8;        // elements of one thread: 16 or 32 bytes of each operand
constexpr int turn_groups = 2;  // on their way at once

template <class From, class To>
struct CastRows {
  const From* from;
  To* to;
  std::int64_t from_stride, to_stride;
};

template <class T>
struct Group {
  Packed<T> packs[group / packed_size<T>];

  __device__ void load(const T* row, int first, int columns, bool packed) {
#pragma unroll
    for (int p = 0; p < group / packed_size<T>; ++p) {
      packs[p] = load_packed(row, first + p * packed_size<T>, columns, packed);
    }
  }
  __device__ void values(float (&all)[group]) const {
#pragma unroll
    for (int p = 0; p < group / packed_size<T>; ++p) {
      float part[packed_size<T>];
      unpack(packs[p], part);
#pragma unroll
      for (int i = 0; i < packed_size<T>; ++i) all[p * packed_size<T> + i] = part[i];
    }
  }
  __device__ static void store(T* row, int first, int columns, bool packed, const float (&all)[group]) {
#pragma unroll
    for (int p = 0; p < group / packed_size<T>; ++p) {
      float part[packed_size<T>];
#pragma unroll
      for (int i = 0; i < packed_size<T>; ++i) part[i] = all[p * packed_size<T> + i];
      store_packed(row, first + p * packed_size<T>, columns, packed, part);
    }
  }
};

// Eight elements of a row at a time; reads and writes every element once.
template <class From, class To, bool packed>
__global__ void __launch_bounds__(cast_threads)
    cast_kernel(const CastRows<From, To> data, unsigned groups_per_row, unsigned groups, int columns) {
  constexpr unsigned tile = cast_threads * turn_groups;
  for (unsigned base = blockIdx.x * tile + threadIdx.x; base < groups; base += gridDim.x * tile) {
    Group<From> held[turn_groups];
    unsigned row[turn_groups];
    int first[turn_groups];
#pragma unroll
    for (int k = 0; k < turn_groups; ++k) {
      const unsigned index = base + k * cast_threads;
      row[k] = index / groups_per_row;
      first[k] = static_cast<int>((index - row[k] * groups_per_row) * group);
      if (index < groups) held[k].load(data.from + row[k] * data.from_stride, first[k], columns, packed);
    }
#pragma unroll
    for (int k = 0; k < turn_groups; ++k) {
      if (base + k * cast_threads >= groups) break;
      float values[group];
      held[k].values(values);
      Group<To>::store(data.to + row[k] * data.to_stride, first[k], columns, packed, values);
    }
  }
}

template <class From, class To>
void cast_rows(cudaStream_t stream, CastRows<From, To> data, bool packed, std::int64_t rows, std::int64_t columns) {
  if (rows == 0 || columns == 0) return;
  require_row_sizes(1, columns, "cast");
  const std::int64_t groups_per_row = (columns + group - 1) / group;
  constexpr std::int64_t most_groups = std::int64_t{1} << 30;  // of one launch: group numbers are 32 bits wide
  const std::int64_t rows_per_launch = std::max<std::int64_t>(1, most_groups / groups_per_row);
  constexpr std::int64_t tile = cast_threads * turn_groups;
  for (std::int64_t row = 0; row < rows; row += rows_per_launch) {
    const std::int64_t groups = std::min(rows_per_launch, rows - row) * groups_per_row;
    const unsigned blocks = static_cast<unsigned>(std::min<std::int64_t>((groups + tile - 1) / tile, 65536));
    const auto kernel = packed ? cast_kernel<From, To, true> : cast_kernel<From, To, false>;
    kernel<<<blocks, cast_threads, 0, stream>>>(data, static_cast<unsigned>(groups_per_row),
                                                static_cast<unsigned>(groups), static_cast<int>(columns));
    check_launch("cast");
    data.from += rows_per_launch * data.from_stride;
    data.to += rows_per_launch * data.to_stride;
  }
}

// Dense tensors are cut into rows of their own, so that any shape is read in full packs.
template <class From, class To>
void cast_elements(cudaStream_t stream, const Cast& args) {
  CastRows<From, To> data{args.from.as<From>(), args.to.as<To>(), args.from.row_stride, args.to.row_stride};
  if (!args.from.contiguous() || !args.to.contiguous()) {
    const bool packed = rows_are_packed<From>(args.from) && rows_are_packed<To>(args.to);
    return cast_rows(stream, data, packed, args.from.rows(), args.from.columns());
  }
  constexpr std::int64_t dense_columns = 1 << 16;
  const auto is_packed = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; };
  const bool packed = is_packed(data.from) && is_packed(data.to);
  const std::int64_t elements = args.from.elements(), rows = elements / dense_columns;
  data.from_stride = data.to_stride = dense_columns;
  cast_rows(stream, data, packed, rows, dense_columns);
  data.from += rows * dense_columns;
  data.to += rows * dense_columns;
  cast_rows(stream, data, packed, 1, elements % dense_columns);
}

// One dtype: bytes are copied, NaN's payload with them.
void copy_rows(cudaStream_t stream, const Cast& args) {
  const std::size_t element = size_of(args.from.dtype);
  const std::size_t width = static_cast<std::size_t>(args.from.columns()) * element;
  const auto pitch = [&](const ConstTensor& tensor) {
    return static_cast<std::size_t>(std::max(tensor.row_stride, tensor.columns())) * element;
  };
  if (args.from.contiguous() && args.to.contiguous()) {
    check(cudaMemcpyAsync(args.to.data, args.from.data, args.from.bytes(), cudaMemcpyDeviceToDevice, stream), "cast");
  } else {
    check(cudaMemcpy2DAsync(args.to.data, pitch(args.to), args.from.data, pitch(args.from), width,
                            static_cast<std::size_t>(args.from.rows()), cudaMemcpyDeviceToDevice, stream),
          "cast");
  }
}

}  // namespace

void cast(const Context& context, const Cast& args) {
  if (args.from.elements() == 0) return;
  const DeviceScope device(context);
  const cudaStream_t stream = stream_of(context.stream());
  if (args.from.dtype == args.to.dtype) return copy_rows(stream, args);
  dispatch(args.from.dtype, "cast: from", [&](auto from_tag) {
    using From = typename decltype(from_tag)::type;
    dispatch(args.to.dtype, "cast: to", [&](auto to_tag) {
      using To = typename decltype(to_tag)::type;
      if constexpr (!std::is_same_v<From, To>) cast_elements<From, To>(stream, args);
    });
  });
}

}  // namespace greyhound::cuda
