// The rows of a batch ordered by token, and within a token by row: a stable radix sort on the device. Internal to the
// CUDA backend.
#pragma once

#include <greyhound/core/cuda/cuda_check.h>
#include <greyhound/core/workspace.h>

#include <algorithm>
#include <cstdint>

namespace greyhound::cuda {

// Nine bits at a time: two passes for vocabularies up to 2^18, four for any.
constexpr int digit_bits = 9;
constexpr int digits = 1 << digit_bits;
constexpr int order_warps = 16;
constexpr int order_threads = 32 * order_warps;  // one per digit
static_assert(order_threads == digits, "a thread adds up one digit");

// Rows cut into tiles, one to a block; each warp of a block has a stretch of `rounds` times 32 rows.
struct OrderTiles {
  std::int64_t rounds, size, count;
  explicit OrderTiles(std::int64_t rows)
      : rounds(std::max<std::int64_t>(4, (rows + 128 * order_threads - 1) / (128 * order_threads))),
        size(rounds * order_threads),
        count((rows + size - 1) / size) {}
  // At least the count of any number of rows up to this one.
  static std::int64_t bound(std::int64_t rows) {
    return std::min<std::int64_t>(128, (rows + 4 * order_threads - 1) / (4 * order_threads));
  }
};

struct TokenOrder {
  std::int32_t* order;   // [rows] row numbers
  std::int32_t* tokens;  // [rows] in that order; a token outside the vocabulary counts as `vocab` and comes last
};

// Sizes of what order_by_token takes from a workspace.
inline std::size_t token_order_bytes(std::int64_t rows) {
  return 3 * Workspace::size(DType::int32, {rows}) + Workspace::size(DType::int32, {OrderTiles::bound(rows), digits});
}

struct OrderArguments {
  const std::int32_t* tokens;  // of the batch
  const std::int32_t* from;    // rows in the order of the pass before; nullptr: as they come
  std::int32_t* to;
  std::int32_t* sorted_tokens;  // in the last pass
  std::int32_t* counts;         // [tiles, digits]
  std::int64_t rows, tiles, rounds;
  std::int32_t vocab;
  int shift;

  __device__ std::int32_t row(std::int64_t at) const {
    return from == nullptr ? static_cast<std::int32_t>(at) : from[at];
  }
  __device__ std::int32_t key(std::int32_t row) const {
    const std::int32_t token = tokens[row];
    return token >= 0 && token < vocab ? token : vocab;
  }
  __device__ int digit(std::int32_t key) const { return (key >> shift) & (digits - 1); }
  // The first row of the calling thread's warp.
  __device__ std::int64_t warp_begin() const {
    return (blockIdx.x * std::int64_t{order_warps} + threadIdx.x / 32) * rounds * 32;
  }
};

// Calls body(row, key, digit, the lanes with this digit) for the warp's rows, 32 at a time; lanes behind the last row
// take no part.
template <class Body>
__device__ void for_each_round(const OrderArguments& args, Body body) {
  const std::int64_t begin = args.warp_begin(), end = min(args.rows, begin + args.rounds * 32);
  for (std::int64_t base = begin; base < end; base += 32) {
    const std::int64_t at = base + threadIdx.x % 32;
    const unsigned active = __ballot_sync(0xffffffffu, at < end);
    if (at < end) {
      const std::int32_t row = args.row(at), key = args.key(row);
      const int digit = args.digit(key);
      body(row, key, digit, __match_any_sync(active, digit), active);
    }
    __syncwarp();
  }
}

// counts[warp][d]: the warp's rows with digit d.
__device__ inline void count_digits(const OrderArguments& args, std::int32_t (*counts)[digits]) {
  for (int warp = 0; warp < order_warps; ++warp) counts[warp][threadIdx.x] = 0;
  __syncthreads();
  std::int32_t* own = counts[threadIdx.x / 32];
  for_each_round(args, [&](std::int32_t, std::int32_t, int digit, unsigned same, unsigned) {
    if (static_cast<int>(threadIdx.x % 32) == __ffs(same) - 1) own[digit] += __popc(same);
  });
  __syncthreads();
}

__global__ void __launch_bounds__(order_threads) count_digits_kernel(const OrderArguments args) {
  __shared__ std::int32_t counts[order_warps][digits];
  count_digits(args, counts);
  std::int32_t sum = 0;
  for (int warp = 0; warp < order_warps; ++warp) sum += counts[warp][threadIdx.x];
  args.counts[blockIdx.x * digits + threadIdx.x] = sum;
}

// The sum of `value` over the threads before this one.
__device__ inline std::int32_t sum_before(std::int32_t value) {
  __shared__ std::int32_t warp_sums[order_warps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  std::int32_t sum = value;
  for (int offset = 1; offset < 32; offset *= 2) {
    const std::int32_t other = __shfl_up_sync(0xffffffffu, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += warp_sums[w];
  return sum - value;
}

// Where a row goes: behind all rows with smaller digits, those with its digit in earlier tiles, in earlier warps of its
// tile, in earlier rounds of its warp, and in lower lanes.
__global__ void __launch_bounds__(order_threads) place_rows_kernel(const OrderArguments args) {
  __shared__ std::int32_t places[order_warps][digits];
  count_digits(args, places);
  std::int32_t all = 0, earlier_tiles = 0;  // rows with the thread's digit
#pragma unroll 8
  for (std::int64_t tile = 0; tile < args.tiles; ++tile) {
    const std::int32_t count = args.counts[tile * digits + threadIdx.x];
    all += count;
    if (tile < blockIdx.x) earlier_tiles += count;
  }
  std::int32_t place = sum_before(all) + earlier_tiles;
  for (int warp = 0; warp < order_warps; ++warp) {
    const std::int32_t count = places[warp][threadIdx.x];
    places[warp][threadIdx.x] = place;
    place += count;
  }
  __syncthreads();
  std::int32_t* own = places[threadIdx.x / 32];
  for_each_round(args, [&](std::int32_t row, std::int32_t key, int digit, unsigned same, unsigned active) {
    const int lane = threadIdx.x % 32;
    const std::int32_t at = own[digit] + __popc(same & ((1u << lane) - 1));
    __syncwarp(active);
    if (lane == __ffs(same) - 1) own[digit] += __popc(same);
    args.to[at] = row;
    if (args.sorted_tokens != nullptr) args.sorted_tokens[at] = key;
  });
}

// At least one row, fewer than 2^31 - 65536 of them.
inline TokenOrder order_by_token(cudaStream_t stream, const std::int32_t* tokens, std::int64_t rows, std::int64_t vocab,
                                 Workspace& workspace) {
  const OrderTiles tiles(rows);
  std::int32_t* order = workspace.take(DType::int32, {rows}).as<std::int32_t>();
  std::int32_t* other = workspace.take(DType::int32, {rows}).as<std::int32_t>();
  OrderArguments args{};
  args.tokens = tokens;
  args.to = order;
  std::int32_t* sorted_tokens = workspace.take(DType::int32, {rows}).as<std::int32_t>();
  args.counts = workspace.take(DType::int32, {tiles.count, digits}).as<std::int32_t>();
  args.rows = rows;
  args.tiles = tiles.count;
  args.rounds = tiles.rounds;
  args.vocab = static_cast<std::int32_t>(vocab);
  for (; args.sorted_tokens == nullptr; args.shift += digit_bits) {
    if (args.shift + digit_bits >= 31 || vocab >> (args.shift + digit_bits) == 0) args.sorted_tokens = sorted_tokens;
    const unsigned blocks = static_cast<unsigned>(tiles.count);
    count_digits_kernel<<<blocks, order_threads, 0, stream>>>(args);
    check_launch("embedding_backward: digits");
    place_rows_kernel<<<blocks, order_threads, 0, stream>>>(args);
    check_launch("embedding_backward: order");
    args.from = args.to;
    args.to = args.to == order ? other : order;
  }
  return {const_cast<std::int32_t*>(args.from), sorted_tokens};
}

}  // namespace greyhound::cuda
