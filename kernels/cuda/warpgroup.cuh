// Products of a warpgroup, four warps, on Hopper's tensor cores, and the tiles in shared memory that they read. PTX
// ISA, "Asynchronous Warpgroup Level Matrix Instructions". For compute capability 9.0 with its own instructions
// (sm_90a) only. Internal to the CUDA backend.
//
// A tile [rows, D] of bf16 lies in shared memory as D / 64 parts [rows, 64], a row of 128 bytes whose 16-byte pieces
// are exchanged: piece p of row r lies at place p ^ (r % 8). Copies of tensors write and read it so ("128-byte
// swizzle"), and products take it either way: rows along the outer dimension of the product, or, transposed, along the
// inner one. Parts begin at multiples of 1024 bytes.
//
// Fragments of a warp are those of tensor_core.cuh: warp w of the group has rows 16 w to 16 w + 15 of 64.
#pragma once

#include <greyhound/core/dtype.h>
#include <greyhound/kernels/cuda/hopper.cuh>
#include <greyhound/kernels/cuda/tensor_core.cuh>

#include <cuda.h>

#include <cstdint>

namespace greyhound::cuda::hopper {

inline constexpr int group_threads = 128;
inline constexpr int group_rows = 64;    // of a group's share of a product
inline constexpr int part_columns = 64;  // of a tile
inline constexpr int row_bytes = part_columns * 2;

template <int D>
inline constexpr int tile_row_bytes = D * 2;

// Where parts may begin in a block's dynamic shared memory, of which 1023 bytes are room for this.
__device__ inline unsigned char* aligned_memory(unsigned char* memory) {
  return memory + (1024 - shared_address(memory) % 1024) % 1024;
}

// What an instruction is told of an operand in shared memory: where it begins, in which steps it continues.
using Descriptor = std::uint64_t;

// Eight rows of a part are 1024 bytes; `part_bytes` is the distance of parts, for transposed operands.
__device__ inline Descriptor describe(const void* tile, unsigned part_bytes) {
  constexpr std::uint64_t eight_rows = 8 * row_bytes, swizzle_128 = std::uint64_t{1} << 62;
  return swizzle_128 | (eight_rows >> 4) << 32 | static_cast<std::uint64_t>(part_bytes >> 4) << 16 |
         (shared_address(tile) & 0x3ffffu) >> 4;
}
// Eight rows of a part, over and over.
__device__ inline Descriptor describe_repeated(const void* rows) {
  return std::uint64_t{1} << 62 | (shared_address(rows) & 0x3ffffu) >> 4;
}
// The same operand, `bytes` further.
__device__ inline Descriptor advance(Descriptor descriptor, unsigned bytes) { return descriptor + (bytes >> 4); }

// Before the first product, and whenever registers of one were touched by other instructions.
__device__ inline void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most `Pending` of the committed groups are at work.
template <int Pending>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// Keeps the compiler from moving what it does with these registers over the instructions around.
template <int Blocks>
__device__ inline void hold(float (&values)[Blocks][4]) {
#pragma unroll
  for (int b = 0; b < Blocks; ++b) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(values[b][e])::"memory");
  }
}
template <int Steps>
__device__ inline void hold(unsigned (&values)[Steps][4]) {
#pragma unroll
  for (int s = 0; s < Steps; ++s) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+r"(values[s][e])::"memory");
  }
}

// sums = left right^T (start) or sums + left right^T (add): 64 rows times 64 or 128, along 16 columns; `left` in shared
// memory or as fragments. Transposed: sums + left right, with 16 rows of `right`.
#define GREYHOUND_NEW(i) "=f"(sums[i][0]), "=f"(sums[i][1]), "=f"(sums[i][2]), "=f"(sums[i][3])
#define GREYHOUND_FOUR(i) "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3])

__device__ inline void start_async(float (&sums)[8][4], Descriptor left, Descriptor right) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, %32, %33, add, 1, 1, 0, 0;\n}"
      : GREYHOUND_NEW(0), GREYHOUND_NEW(1), GREYHOUND_NEW(2), GREYHOUND_NEW(3), GREYHOUND_NEW(4), GREYHOUND_NEW(5),
        GREYHOUND_NEW(6), GREYHOUND_NEW(7)
      : "l"(left), "l"(right));
}

__device__ inline void start_async(float (&sums)[8][4], const unsigned (&left)[4], Descriptor right) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, {%32, %33, %34, %35}, %36, add, 1, 1, 0;\n}"
      : GREYHOUND_NEW(0), GREYHOUND_NEW(1), GREYHOUND_NEW(2), GREYHOUND_NEW(3), GREYHOUND_NEW(4), GREYHOUND_NEW(5),
        GREYHOUND_NEW(6), GREYHOUND_NEW(7)
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
}

__device__ inline void add_async(float (&sums)[8][4], Descriptor left, Descriptor right) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, %32, %33, add, 1, 1, 0, 0;\n}"
      : GREYHOUND_FOUR(0), GREYHOUND_FOUR(1), GREYHOUND_FOUR(2), GREYHOUND_FOUR(3), GREYHOUND_FOUR(4),
        GREYHOUND_FOUR(5), GREYHOUND_FOUR(6), GREYHOUND_FOUR(7)
      : "l"(left), "l"(right));
}

template <bool Transposed>
__device__ inline void add_async(float (&sums)[8][4], const unsigned (&left)[4], Descriptor right) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, {%32, %33, %34, %35}, %36, add, 1, 1, %37;\n}"
      : GREYHOUND_FOUR(0), GREYHOUND_FOUR(1), GREYHOUND_FOUR(2), GREYHOUND_FOUR(3), GREYHOUND_FOUR(4),
        GREYHOUND_FOUR(5), GREYHOUND_FOUR(6), GREYHOUND_FOUR(7)
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "n"(Transposed ? 1 : 0));
}

__device__ inline void start_async(float (&sums)[16][4], Descriptor left, Descriptor right) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
      "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, add, 1, 1, 0, 0;\n}"
      : GREYHOUND_NEW(0), GREYHOUND_NEW(1), GREYHOUND_NEW(2), GREYHOUND_NEW(3), GREYHOUND_NEW(4), GREYHOUND_NEW(5),
        GREYHOUND_NEW(6), GREYHOUND_NEW(7), GREYHOUND_NEW(8), GREYHOUND_NEW(9), GREYHOUND_NEW(10), GREYHOUND_NEW(11),
        GREYHOUND_NEW(12), GREYHOUND_NEW(13), GREYHOUND_NEW(14), GREYHOUND_NEW(15)
      : "l"(left), "l"(right));
}

__device__ inline void start_async(float (&sums)[16][4], const unsigned (&left)[4], Descriptor right) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
      "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, add, 1, 1, 0;\n}"
      : GREYHOUND_NEW(0), GREYHOUND_NEW(1), GREYHOUND_NEW(2), GREYHOUND_NEW(3), GREYHOUND_NEW(4), GREYHOUND_NEW(5),
        GREYHOUND_NEW(6), GREYHOUND_NEW(7), GREYHOUND_NEW(8), GREYHOUND_NEW(9), GREYHOUND_NEW(10), GREYHOUND_NEW(11),
        GREYHOUND_NEW(12), GREYHOUND_NEW(13), GREYHOUND_NEW(14), GREYHOUND_NEW(15)
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
}

// sums = (add ? sums : 0) + left right^T, or left right.
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
__device__ inline void add_async(float (&sums)[16][4], Descriptor left, Descriptor right) {
  multiply_async<false>(sums, left, right, true);
}

template <bool Transposed>
__device__ inline void add_async(float (&sums)[16][4], const unsigned (&left)[4], Descriptor right) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
      "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, add, 1, 1, %69;\n}"
      : GREYHOUND_FOUR(0), GREYHOUND_FOUR(1), GREYHOUND_FOUR(2), GREYHOUND_FOUR(3), GREYHOUND_FOUR(4),
        GREYHOUND_FOUR(5), GREYHOUND_FOUR(6), GREYHOUND_FOUR(7), GREYHOUND_FOUR(8), GREYHOUND_FOUR(9),
        GREYHOUND_FOUR(10), GREYHOUND_FOUR(11), GREYHOUND_FOUR(12), GREYHOUND_FOUR(13), GREYHOUND_FOUR(14),
        GREYHOUND_FOUR(15)
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "n"(Transposed ? 1 : 0));
}
#undef GREYHOUND_NEW
#undef GREYHOUND_FOUR

// products = left right^T along D columns: the group's 64 rows times `Rows` rows of a tile.
template <int D, int Rows>
__device__ inline void multiply_rows_async(float (&products)[Rows / 8][4], Descriptor left, Descriptor right) {
  start_async(products, left, right);
#pragma unroll
  for (int k = 1; k < D / 16; ++k) {
    const int part = k / 4, bytes = k % 4 * 32;
    add_async(products, advance(left, static_cast<unsigned>(part * group_rows * row_bytes + bytes)),
              advance(right, static_cast<unsigned>(part * Rows * row_bytes + bytes)));
  }
}
template <int D, int Rows>
__device__ inline void multiply_rows_async(float (&products)[Rows / 8][4], const unsigned (&left)[D / 16][4],
                                           Descriptor right) {
  start_async(products, left[0], right);
#pragma unroll
  for (int k = 1; k < D / 16; ++k) {
    const int part = k / 4, bytes = k % 4 * 32;
    add_async<false>(products, left[k], advance(right, static_cast<unsigned>(part * Rows * row_bytes + bytes)));
  }
}
// sums += weights times 16 * Steps rows of a tile.
template <int D, int Steps>
__device__ inline void add_weighted_rows_async(float (&sums)[D / 8][4], const unsigned (&weights)[Steps][4],
                                               Descriptor rows) {
#pragma unroll
  for (int s = 0; s < Steps; ++s) {
    add_async<true>(sums, weights[s], advance(rows, static_cast<unsigned>(s * 16 * row_bytes)));
  }
}

// The group's 64 rows of a tile as left operands.
template <int D>
__device__ inline void load_left(unsigned (&fragments)[D / 16][4], const unsigned char* tile) {
  const int lane = threadIdx.x % 32, row = threadIdx.x % group_threads / 32 * 16 + lane % 16;
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const int piece = k % 4 * 2 + lane / 16;
    load_matrices(fragments[k], tile + k / 4 * group_rows * row_bytes + row * row_bytes + (piece ^ row % 8) * 16);
  }
}

// A barrier of some warps of a block. Numbers are constants so that a block does not take all sixteen.
template <int Number, int Warps>
__device__ inline void warps_barrier() {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"n"(Number), "n"(Warps * 32) : "memory");
}

// Barriers of one group of up to three.
__device__ inline void group_barrier(int group) {
  if (group == 0) {
    warps_barrier<1, 4>();
  } else if (group == 1) {
    warps_barrier<2, 4>();
  } else {
    warps_barrier<3, 4>();
  }
}
template <int Number>
__device__ inline int any_at_barrier(bool mine) {
  int any;
  asm volatile(
      "{\n.reg .pred p, q;\n"
      "setp.ne.b32 p, %1, 0;\n"
      "barrier.cta.red.or.pred.aligned q, %2, %3, p;\n"
      "selp.b32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"(static_cast<int>(mine)), "n"(Number), "n"(group_threads)
      : "memory");
  return any;
}
__device__ inline bool any_in_group(int group, bool mine) {
  return (group == 0 ? any_at_barrier<1>(mine) : group == 1 ? any_at_barrier<2>(mine) : any_at_barrier<3>(mine)) != 0;
}

// Counts arrivals from 0 to `last` and round again; returns the number of this one. What the threads that arrived
// before have read comes before what this one does next.
__device__ inline unsigned count_arrival(unsigned& counter, unsigned last) {
  unsigned number;
  asm volatile("atom.acq_rel.cta.shared::cta.inc.u32 %0, [%1], %2;"
               : "=r"(number)
               : "r"(shared_address(&counter)), "r"(last)
               : "memory");
  return number;
}

// Copies of boxes of a tensor [batch, tokens, heads, size], 64 columns by 64 tokens of one head. What lies outside of
// the tensor is zero in shared memory and is not written.
__device__ inline void load_box(void* to, const CUtensorMap& map, int column, int head, int token, int batch,
                                Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(head), "r"(token), "r"(batch), "r"(shared_address(&barrier))
      : "memory");
}
__device__ inline void store_box(const CUtensorMap& map, const void* from, int column, int head, int token, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(&map),
               "r"(column), "r"(head), "r"(token), "r"(batch), "r"(shared_address(from))
               : "memory");
}
// Until the copies that this thread started have read shared memory.
__device__ inline void finish_stores() {
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Makes ordinary stores to shared memory visible to copies and products.
__device__ inline void publish_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

template <int D, int Rows>
__device__ inline void load_tile(unsigned char* tile, const CUtensorMap& map, int head, int token, int batch,
                                 Barrier& barrier) {
#pragma unroll
  for (int part = 0; part < D / part_columns; ++part) {
#pragma unroll
    for (int row = 0; row < Rows; row += group_rows) {
      load_box(tile + (part * Rows + row) * row_bytes, map, part * part_columns, head, token + row, batch, barrier);
    }
  }
}

// Writes the group's 64 rows, each times its factor, through a tile that the group has read. All threads of the group.
template <int D>
__device__ inline void store_tile(const float (&sums)[D / 8][4], float factor, float lower_factor, unsigned char* tile,
                                  int group, const CUtensorMap& map, int head, int token, int batch) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  group_barrier(group);  // the products of all four warps have read the tile
  unsigned char* row = tile + (threadIdx.x % group_threads / 32 * 16 + g) * row_bytes + 4 * t;
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    unsigned char* place = row + n / 8 * group_rows * row_bytes + (n % 8 ^ g) * 16;
    *reinterpret_cast<unsigned*>(place) = pack_bf16(sums[n][0] * factor, sums[n][1] * factor);
    *reinterpret_cast<unsigned*>(place + 8 * row_bytes) =
        pack_bf16(sums[n][2] * lower_factor, sums[n][3] * lower_factor);
  }
  publish_stores();
  group_barrier(group);
  if (threadIdx.x % group_threads == 0) {
#pragma unroll
    for (int part = 0; part < D / part_columns; ++part) {
      store_box(map, tile + part * group_rows * row_bytes, part * part_columns, head, token, batch);
    }
    finish_stores();
  }
}

}  // namespace greyhound::cuda::hopper
