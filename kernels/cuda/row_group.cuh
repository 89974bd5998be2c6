// Warps that work on one row together, and the row in their registers. Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/cuda/block_reduce.cuh>
#include <greyhound/kernels/cuda/packed.cuh>

#include <cstdint>

namespace greyhound::cuda {

// A group of warps; a block holds as many as four warps make, or one of more warps.
template <int warps>
struct RowGroup {
  static constexpr int lanes = warp_size * warps;
  static constexpr int threads = warps < 4 ? 4 * warp_size : lanes;  // of a block
  static constexpr int per_block = threads / lanes;

  __device__ static int lane() { return threadIdx.x % lanes; }
  __device__ static int index() { return threadIdx.x / lanes; }  // of the group in its block

  // Waits for the group's other warps; what they wrote to shared memory before it can be read after it.
  __device__ static void wait() {
    if constexpr (per_block == 1) {
      __syncthreads();
    } else {
      asm volatile("bar.sync %0, %1;" ::"r"(index() + 1), "n"(lanes) : "memory");
    }
  }

  // Sums each value over the group's lanes in a fixed order; every lane gets the same. All lanes of the group call it.
  // `shared`: the block's, per_block * warps * count entries; not used by a group of one warp.
  template <int count>
  __device__ static void sum(float (&values)[count], float* shared) {
#pragma unroll
    for (int offset = warp_size / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (float& value : values) value += __shfl_xor_sync(0xffffffffu, value, offset);
    }
    if constexpr (warps > 1) {
      shared += index() * warps * count;
      const int warp = lane() / warp_size;
      wait();  // what an earlier call left has been read
      if (threadIdx.x % warp_size == 0) {
#pragma unroll
        for (int i = 0; i < count; ++i) shared[warp * count + i] = values[i];
      }
      wait();
#pragma unroll
      for (int i = 0; i < count; ++i) {
        values[i] = 0;
#pragma unroll
        for (int w = 0; w < warps; ++w) values[i] += shared[w * count + i];
      }
    }
  }
};

// A row of full packs, aligned to 16 bytes, of which lane l of `lanes` has packs l, l + lanes, ... `Row` says where
// they are: at(k, first column, columns, values) gives the lane's pack k.
template <class Row, class T, int packs, int lanes>
struct RowOfPacks {
  static constexpr bool whole = true;  // no pack reaches beyond the row's end

  __device__ static int first_of(int k, int lane) { return (k * lanes + lane) * packed_size<T>; }
  // body(k, first column, values) for the lane's pack k = 0, 1, ...
  template <class Body>
  __device__ void each(int lane, int columns, Body body) const {
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      const int first = first_of(k, lane);
      if (first >= columns) continue;
      float values[packed_size<T>];
      static_cast<const Row*>(this)->at(k, first, columns, values);
      body(k, first, values);
    }
  }
};

// In the lane's registers.
template <class T, int packs, int lanes>
struct HeldRow : RowOfPacks<HeldRow<T, packs, lanes>, T, packs, lanes> {
  using HeldRow::RowOfPacks::first_of;
  Packed<T> held[packs];

  __device__ void load(const T* row, int lane, int columns) {
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      const int first = first_of(k, lane);
      held[k].bits = first < columns ? *reinterpret_cast<const uint4*>(row + first) : make_uint4(0, 0, 0, 0);
    }
  }
  __device__ void at(int k, int, int, float (&values)[packed_size<T>]) const { unpack(held[k], values); }
};

// Any row, read again at every walk; the same elements to the same lanes.
template <class T, int lanes>
struct StreamedRow {
  static constexpr bool whole = false;
  const T* row;

  __device__ void load(const T* from, int, int) { row = from; }
  __device__ void at(int, int first, int columns, float (&values)[packed_size<T>]) const {
    unpack(load_packed(row, first, columns, is_packed_aligned(row)), values);
  }
  template <class Body>
  __device__ void each(int lane, int columns, Body body) const {
    const bool aligned = is_packed_aligned(row);
    int k = 0;
    for (int first = lane * packed_size<T>; first < columns; first += lanes * packed_size<T>) {
      float values[packed_size<T>];
      unpack(load_packed(row, first, columns, aligned), values);
      body(k++, first, values);
    }
  }
};

// packs 0: a streamed row.
template <class T, int packs, int lanes>
struct RowOf {
  using type = HeldRow<T, packs, lanes>;
};
template <class T, int lanes>
struct RowOf<T, 0, lanes> {
  using type = StreamedRow<T, lanes>;
};

// Reads and writes 16 bytes of a row: `whole` rows need no checks.
template <class T, bool whole>
__device__ inline void read_pack(const T* row, int first, int columns, float (&values)[packed_size<T>]) {
  if constexpr (whole) {
    unpack(Packed<T>{*reinterpret_cast<const uint4*>(row + first)}, values);
  } else {
    unpack(load_packed(row, first, columns, is_packed_aligned(row)), values);
  }
}
template <class T, bool whole>
__device__ inline void write_pack(T* row, int first, int columns, const float (&values)[packed_size<T>]) {
  if constexpr (whole) {
    *reinterpret_cast<uint4*>(row + first) = pack<T>(values).bits;
  } else {
    store_packed(row, first, columns, is_packed_aligned(row), values);
  }
}

// Warps of a group, and packs of a row that a lane has: 0 where the row is not held.
template <int packs_, int warps_>
struct RowShape {
  static constexpr int packs = packs_, warps = warps_;
};
template <class... Shapes>
struct RowShapes {};

// Calls function(shape) with the first of `shapes` that holds a row of `columns`, without packs where the row is not
// made of full aligned packs (`whole`), or with RowShape<0, 8> where none holds it. The warps follow from the row's
// length alone, and with them the order of sums over a row.
template <class T, class Function, class... Shapes>
void dispatch_row_shape(RowShapes<Shapes...>, std::int64_t columns, bool whole, Function&& function) {
  const std::int64_t packs = (columns + packed_size<T> - 1) / packed_size<T>;
  const auto holds = [&](auto shape) {
    using Shape = decltype(shape);
    if (packs > Shape::packs * Shape::warps * warp_size) return false;
    if (whole) {
      function(shape);
    } else {
      function(RowShape<0, Shape::warps>{});
    }
    return true;
  };
  if (!(holds(Shapes{}) || ...)) function(RowShape<0, 8>{});
}

}  // namespace greyhound::cuda
