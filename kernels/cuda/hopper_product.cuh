// What products of two tiles in shared memory need beside warpgroup.cuh: wider sums, copies of boxes of a matrix, more
// registers for the groups that multiply. For sm_90a only. Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/cuda/warpgroup.cuh>

namespace greyhound::cuda::hopper {

// sums = (add ? sums : 0) + left right^T: 64 rows times 128 or 256, along 16 columns. Transposed: left right, with 16
// rows of `right`.
#define GREYHOUND_FOUR(i) "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3])

template <bool Transposed>
__device__ inline void multiply_async(float (&sums)[16][4], Descriptor left, Descriptor right, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
      "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, add, 1, 1, 0, %67;\n}"
      : GREYHOUND_FOUR(0), GREYHOUND_FOUR(1), GREYHOUND_FOUR(2), GREYHOUND_FOUR(3), GREYHOUND_FOUR(4),
        GREYHOUND_FOUR(5), GREYHOUND_FOUR(6), GREYHOUND_FOUR(7), GREYHOUND_FOUR(8), GREYHOUND_FOUR(9),
        GREYHOUND_FOUR(10), GREYHOUND_FOUR(11), GREYHOUND_FOUR(12), GREYHOUND_FOUR(13), GREYHOUND_FOUR(14),
        GREYHOUND_FOUR(15)
      : "l"(left), "l"(right), "r"(static_cast<int>(add)), "n"(Transposed ? 1 : 0));
}

template <bool Transposed>
__device__ inline void multiply_async(float (&sums)[32][4], Descriptor left, Descriptor right, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
      "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, "
      "%74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "
      "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, "
      "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, "
      "%123, %124, %125, %126, %127"
      "}, %128, %129, add, 1, 1, 0, %131;\n}"
      : GREYHOUND_FOUR(0), GREYHOUND_FOUR(1), GREYHOUND_FOUR(2), GREYHOUND_FOUR(3), GREYHOUND_FOUR(4),
        GREYHOUND_FOUR(5), GREYHOUND_FOUR(6), GREYHOUND_FOUR(7), GREYHOUND_FOUR(8), GREYHOUND_FOUR(9),
        GREYHOUND_FOUR(10), GREYHOUND_FOUR(11), GREYHOUND_FOUR(12), GREYHOUND_FOUR(13), GREYHOUND_FOUR(14),
        GREYHOUND_FOUR(15), GREYHOUND_FOUR(16), GREYHOUND_FOUR(17), GREYHOUND_FOUR(18), GREYHOUND_FOUR(19),
        GREYHOUND_FOUR(20), GREYHOUND_FOUR(21), GREYHOUND_FOUR(22), GREYHOUND_FOUR(23), GREYHOUND_FOUR(24),
        GREYHOUND_FOUR(25), GREYHOUND_FOUR(26), GREYHOUND_FOUR(27), GREYHOUND_FOUR(28), GREYHOUND_FOUR(29),
        GREYHOUND_FOUR(30), GREYHOUND_FOUR(31)
      : "l"(left), "l"(right), "r"(static_cast<int>(add)), "n"(Transposed ? 1 : 0));
}
#undef GREYHOUND_FOUR

// Copies a box of a matrix, 64 columns by as many rows as the map says, into a part of a tile; what lies outside of the
// matrix is zero. With `Blocks` of a cluster, the copy goes to the same place in all of them, and their barriers, at
// the same place too, each get its bytes.
template <int Blocks = 1>
__device__ inline void load_box(void* to, const CUtensorMap& map, int column, int row, Barrier& barrier) {
  if constexpr (Blocks == 1) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            shared_address(to)),
        "l"(&map), "r"(column), "r"(row), "r"(shared_address(&barrier))
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
        "l"(&map), "r"(column), "r"(row), "r"(shared_address(&barrier)),
        "h"(static_cast<unsigned short>((1 << Blocks) - 1))
        : "memory");
  }
}

// Registers of each thread of a warpgroup, from here on: fewer, or more once other groups have given theirs. All four
// warps.
template <int Count>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}

// Stores four 8 x 8 matrices of 16-bit elements, held as load_matrices returns them; lanes 8 m .. 8 m + 7 give the
// places of the rows of matrix m.
__device__ inline void store_matrices(void* row, const unsigned (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

// A barrier of some warps of a block.
template <int Number, int Warps>
__device__ inline void warps_barrier() {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"n"(Number), "n"(Warps * 32) : "memory");
}

// The stages of a ring of barriers, one after the other.
template <int Stages>
struct RingPlace {
  int stage = 0;
  unsigned parity = 0;
  __device__ void advance() {
    if (++stage == Stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace greyhound::cuda::hopper
