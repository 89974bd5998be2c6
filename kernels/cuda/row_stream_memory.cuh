// What the warps and blocks of row_stream.cuh hand each other through shared memory. Internal to the CUDA backend.
#pragma once

#include <greyhound/kernels/cuda/row_stream_plan.h>
#include <greyhound/kernels/cuda/hopper.cuh>
#include <greyhound/kernels/cuda/row_statistics.cuh>

namespace greyhound::cuda {

// The constants of a task of row_stream.cuh: the rows' dtype, whether z is anything but the raw logit, which statistics
// are wanted, and whether there can be a second pass.
template <class Element, bool is_squashed, bool with_extras, bool can_write>
struct StreamTask {
  using T = Element;
  static constexpr bool squashed = is_squashed, extras = with_extras, may_write = can_write;
};

// Stores the packs of a warp, which are consecutive from the first lane's `column` on, in a row that begins `shift`
// bytes behind a 16-byte boundary and ends at `columns`; `valid` lanes come first. All lanes call. With a shift, a lane
// stores the 16 bytes between its left neighbour's pack and its own, and the outermost elements are stored alone.
template <class T>
__device__ inline void store_warp(T* row, unsigned shift, int column, int columns,
                                  const float (&values)[packed_size<T>], bool valid) {
  constexpr int size = packed_size<T>;
  const uint4 bits = pack<T>(values).bits;
  const bool whole = valid && column + size <= columns;
  const unsigned lane = threadIdx.x % warp_size;
  bool first_stored = whole, last_stored = whole;
  if (shift == 0) {
    if (whole) *reinterpret_cast<uint4*>(row + column) = bits;
  } else {
    const uint4 left = shuffle_words(bits, [](unsigned word) { return __shfl_up_sync(0xffffffffu, word, 1); });
    first_stored = whole && lane > 0;
    last_stored = __shfl_down_sync(0xffffffffu, first_stored, 1) && lane + 1 < warp_size;
    if (first_stored) {
      auto* granule = reinterpret_cast<unsigned char*>(row + column) - shift;
      *reinterpret_cast<uint4*>(granule) = middle_bytes(left, bits, 16 - shift);
    }
  }
  const int firsts = static_cast<int>((16 - shift) / sizeof(T));
#pragma unroll
  for (int i = 0; i < size; ++i) {
    const bool stored = i < firsts ? first_stored : last_stored;
    if (valid && !stored && column + i < columns) row[column + i] = narrow<T>(values[i]);
  }
}

// What a block has to know of a row besides its logits.
struct RowHeader {
  static constexpr int ignored = -1, bad = -2;  // targets of rows that are not read
  int target;                                   // the column kept out of the statistics; below 0: the row is not read
  float logit;                                  // of that column
  float weight;                                 // meaning up to the task
  float upstream;
};

struct StreamedRows {
  const void* data;  // aligned to its elements
  std::int64_t stride, rows;
  int vocab;
};

// What the blocks of a cluster tell each other about a row.
template <bool extras>
struct Exchanged {
  uint2 words;
  __device__ static Exchanged of(const RowStatistics& s) {
    return {make_uint2(__float_as_uint(s.max), __float_as_uint(s.sum))};
  }
  __device__ RowStatistics statistics() const {
    RowStatistics s = RowStatistics::none();
    s.max = __uint_as_float(words.x);
    s.sum = __uint_as_float(words.y);
    return s;
  }
  __device__ void send(unsigned to, unsigned barrier) const { hopper::store_remote(to, words, barrier); }
};
template <>
struct Exchanged<true> {
  uint4 low, high;
  __device__ static Exchanged of(const RowStatistics& s) {
    return {make_uint4(__float_as_uint(s.max), __float_as_uint(s.sum), __float_as_uint(s.gap_sum),
                       __float_as_uint(s.entropy_sum)),
            make_uint4(__float_as_uint(s.argmax_value), static_cast<unsigned>(s.argmax), static_cast<unsigned>(s.count),
                       0)};
  }
  __device__ RowStatistics statistics() const {
    return {__uint_as_float(low.x),  __uint_as_float(low.y),   __uint_as_float(low.z),  __uint_as_float(low.w),
            __uint_as_float(high.x), static_cast<int>(high.y), static_cast<int>(high.z)};
  }
  __device__ void send(unsigned to, unsigned barrier) const {
    hopper::store_remote(to, low, barrier);
    hopper::store_remote(to + sizeof low, high, barrier);
  }
};

// Dynamic shared memory of a block; the ring of chunks follows.
template <bool extras>
struct StreamShared {
  hopper::Barrier full[max_stream_slots], empty[max_stream_slots];
  hopper::Barrier header_full[stream_headers], header_empty[stream_headers], posted[stream_headers];
  hopper::Barrier exchanged[2];
  RowHeader headers[stream_headers];
  Exchanged<extras> posts[stream_headers][stream_warps];  // of the row of the same header, for the recording warp
  Exchanged<extras> entries[2][max_stream_cluster * stream_warps];
};

// A place in a ring, and the parity of the phase that fills it next.
struct Cursor {
  unsigned slot = 0, parity = 0;
  __device__ void advance(unsigned slots) {
    if (++slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

}  // namespace greyhound::cuda
