// What products of two tiles in shared memory need beside warpgroup.cuh: wider sums, copies of boxes of a matrix, more
// registers for the groups that multiply. For sm_90a only. Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/cuda/warpgroup.cuh>

namespace greyhound::cuda::hopper {

// sums = (add ? sums : 0) + left right^T: 64 rows times 128, along 16 columns. Transposed: left right, with 16
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
#undef GREYHOUND_FOUR

// Copies a box of a matrix, 64 columns by as many rows as the map says, into a part of a tile; what lies outside of the
// matrix is zero.
__device__ inline void load_box(void* to, const CUtensorMap& map, int column, int row, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(&barrier))
      : "memory");
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
