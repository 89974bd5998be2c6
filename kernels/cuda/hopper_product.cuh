// What products of two tiles in shared memory need beside warpgroup.cuh: copies of boxes of a matrix, more registers
// for the groups that multiply. For sm_90a only. Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/cuda/warpgroup.cuh>

namespace greyhound::cuda::hopper {

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
