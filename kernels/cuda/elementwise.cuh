// Element-wise loops over one or two tensors of one shape and dtype. Internal to the CUDA backend.
#pragma once

#include <greyhound/core/cuda/device_scope.h>
#include <greyhound/core/tensor.h>
#include <greyhound/kernels/cuda/rows.h>
#include <greyhound/kernels/cuda/packed.cuh>

namespace greyhound::cuda {

// Calls function(TypeTag<float or bf16>{}); the operator has checked that the dtype is one of these.
template <class Function>
void dispatch_fp32_bf16(DType dtype, Function&& function) {
  if (dtype == DType::fp32) {
    function(TypeTag<float>{});
  } else {
    function(TypeTag<bf16>{});
  }
}

// Whether every row of a tensor begins on 16 bytes.
template <class T>
bool rows_are_packed(const ConstTensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0 &&
         (tensor.rows() <= 1 || tensor.row_stride % packed_size<T> == 0);
}

template <class T, int inputs>
struct Operands {
  const T* in[inputs];
  std::int64_t in_stride[inputs];
  T* out;
  std::int64_t out_stride;
  std::int64_t first_row;  // of the tensor, for operators that need to know
};

constexpr int elementwise_threads = 256;
template <int inputs>
inline constexpr int elementwise_packs = inputs == 1 ? 4 : 2;  // per thread and turn, so that its loads overlap

// op(row, first_column, in, out) on 16 bytes of each operand at a time. `packed` says that every row begins on 16
// bytes. Each thread reads its elements before it writes them: out may be an input.
template <class T, int inputs, bool packed, class Op>
__global__ void __launch_bounds__(elementwise_threads)
    elementwise_kernel(const Operands<T, inputs> data, unsigned packs_per_row, unsigned packs, int columns, Op op) {
  constexpr int size = packed_size<T>, turn = elementwise_packs<inputs>;
  constexpr unsigned tile = elementwise_threads * turn;
  for (unsigned base = blockIdx.x * tile + threadIdx.x; base < packs; base += gridDim.x * tile) {
    Packed<T> held[turn][inputs];
    unsigned row[turn];
    int first[turn];
#pragma unroll
    for (int k = 0; k < turn; ++k) {
      const unsigned index = base + k * elementwise_threads;
      row[k] = index / packs_per_row;
      first[k] = static_cast<int>((index - row[k] * packs_per_row) * size);
      if (index >= packs) continue;
#pragma unroll
      for (int i = 0; i < inputs; ++i) {
        held[k][i] = load_packed(data.in[i] + row[k] * data.in_stride[i], first[k], columns, packed);
      }
    }
#pragma unroll
    for (int k = 0; k < turn; ++k) {
      if (base + k * elementwise_threads >= packs) break;
      float values[inputs][size], result[size];
#pragma unroll
      for (int i = 0; i < inputs; ++i) unpack(held[k][i], values[i]);
      op(data.first_row + row[k], first[k], values, result);
      store_packed(data.out + row[k] * data.out_stride, first[k], columns, packed, result);
    }
  }
}

template <class T, int inputs, class Op>
void launch_rows(const Context& context, const char* name, Operands<T, inputs> data, bool packed, std::int64_t rows,
                 std::int64_t columns, Op op) {
  if (rows == 0 || columns == 0) return;
  require_row_sizes(1, columns, name);
  const std::int64_t packs_per_row = (columns + packed_size<T> - 1) / packed_size<T>;
  constexpr std::int64_t most_packs = std::int64_t{1} << 30;  // of one launch: pack numbers are 32 bits wide
  const std::int64_t rows_per_launch = std::max<std::int64_t>(1, most_packs / packs_per_row);
  constexpr std::int64_t tile = elementwise_threads * elementwise_packs<inputs>;
  for (std::int64_t row = 0; row < rows; row += rows_per_launch) {
    const std::int64_t packs = std::min(rows_per_launch, rows - row) * packs_per_row;
    const unsigned blocks = static_cast<unsigned>(std::min<std::int64_t>((packs + tile - 1) / tile, 65536));
    const auto kernel = packed ? elementwise_kernel<T, inputs, true, Op> : elementwise_kernel<T, inputs, false, Op>;
    kernel<<<blocks, elementwise_threads, 0, stream_of(context.stream())>>>(
        data, static_cast<unsigned>(packs_per_row), static_cast<unsigned>(packs), static_cast<int>(columns), op);
    check_launch(name);
    for (int i = 0; i < inputs; ++i) data.in[i] += rows_per_launch * data.in_stride[i];
    data.out += rows_per_launch * data.out_stride;
    data.first_row += rows_per_launch;
  }
}

// out = op(in...). Tensors that are dense are cut into rows of their own where the operator does not ask for the
// tensor's, so that any shape is read in full packs.
template <class T, int inputs, class Op>
void launch_elementwise(const Context& context, const char* name, const ConstTensor (&in)[inputs], const Tensor& out,
                        Op op) {
  const DeviceScope device(context);
  Operands<T, inputs> data{};
  bool dense = out.contiguous(), packed = rows_are_packed<T>(out);
  for (int i = 0; i < inputs; ++i) {
    data.in[i] = in[i].template as<T>();
    data.in_stride[i] = in[i].row_stride;
    dense = dense && in[i].contiguous();
    packed = packed && rows_are_packed<T>(in[i]);
  }
  data.out = out.as<T>();
  data.out_stride = out.row_stride;
  if (!dense || Op::needs_rows) {
    launch_rows(context, name, data, packed, out.rows(), out.columns(), op);
    return;
  }
  constexpr std::int64_t dense_columns = 1 << 16;
  packed = reinterpret_cast<std::uintptr_t>(out.data) % 16 == 0;
  for (int i = 0; i < inputs; ++i) packed = packed && reinterpret_cast<std::uintptr_t>(in[i].data) % 16 == 0;
  for (std::int64_t& stride : data.in_stride) stride = dense_columns;
  data.out_stride = dense_columns;
  const std::int64_t rows = out.elements() / dense_columns;
  launch_rows(context, name, data, packed, rows, dense_columns, op);
  for (const T*& operand : data.in) operand += rows * dense_columns;
  data.out += rows * dense_columns;
  launch_rows(context, name, data, packed, out.elements() == 0 ? 0 : 1, out.elements() % dense_columns, op);
}

}  // namespace greyhound::cuda
