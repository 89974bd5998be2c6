// Warp-wide instructions of compute capability 8.0: copies into shared memory that run beside the arithmetic, loads of
// 8 x 8 fragments, products on tensor cores. PTX ISA, "cp.async", "ldmatrix", "mma.m16n8k16". Internal to the CUDA
// backend.
//
// Fragments of a lane, with g = lane / 4 and t = lane % 4:
//   accumulator c[4]: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1) of 16 x 8
//   left operand a[4], pairs of bf16: rows g, g + 8, g, g + 8; columns from 2t, 2t, 2t + 8, 2t + 8 of 16 x 16
//   right operand b0, b1: column g, rows from 2t and 2t + 8 of 16 x 8
#pragma once

#include <greyhound/kernels/cuda/fast_math.cuh>

#include <cuda_bf16.h>

namespace greyhound::cuda {

__device__ inline unsigned shared_address_of(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes, both ends aligned to 16, or writes zeros where not `valid`.
__device__ inline void copy_async_16(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address_of(to)), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void copy_async_4(void* to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address_of(to)), "l"(from),
               "r"(valid ? 4 : 0)
               : "memory");
}
// Ends a group of copies, of all since the group before.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for this thread's groups of copies but the last so many.
template <int count>
__device__ inline void wait_for_all_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(count) : "memory");
}
// Waits for all copies of this thread; a barrier makes those of others visible.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Four 8 x 8 matrices of 16-bit elements: lanes 8 m .. 8 m + 7 give the rows of matrix m; the lane gets, of each
// matrix, elements (g, 2t) and (g, 2t + 1), or transposed (2t, g) and (2t + 1, g).
__device__ inline void load_matrices(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address_of(row))
               : "memory");
}
__device__ inline void load_matrices_transposed(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address_of(row))
               : "memory");
}

// c += a b, with fp32 sums.
__device__ inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two floats, rounded to nearest even, as one word; the first in the lower half.
__device__ inline unsigned pack_bf16(float first, float second) {
  unsigned word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
}

}  // namespace greyhound::cuda
