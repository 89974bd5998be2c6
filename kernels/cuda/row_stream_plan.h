// How rows are laid over blocks by row_stream.cuh. Internal to the CUDA backend.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace greyhound::cuda {

inline constexpr int stream_warps = 16;  // of a block, that consume; three more fetch and record
inline constexpr int stream_threads = 32 * stream_warps;
inline constexpr int stream_block_threads = stream_threads + 96;
inline constexpr int stream_packs_per_thread = 4;  // of each chunk
inline constexpr int stream_chunk_packs = stream_packs_per_thread * stream_threads;
inline constexpr int stream_slot_granules = stream_chunk_packs + 8;  // one more for shifted rows, slots at 128 bytes
inline constexpr std::size_t stream_slot_bytes = 16 * stream_slot_granules;
inline constexpr int max_stream_slots = 16;               // chunks of a block's ring
inline constexpr int max_stream_cluster = 8;              // blocks that share a row
inline constexpr int stream_headers = 4;                  // rows whose header is read ahead
inline constexpr std::size_t stream_ring_offset = 12288;  // StreamShared comes first

struct StreamShape {
  unsigned slots;   // chunks in a block's ring
  int slice_packs;  // packs of 16 bytes of a row for each block of the cluster
};

struct StreamPlan {
  StreamShape shape{};
  unsigned cluster = 0;  // blocks; 0: the row does not fit
  std::size_t shared_bytes = 0;
};

// For rows of `packs` packs of 16 bytes. One block to a multiprocessor, with all of its memory. A row that is
// written again is kept whole, by the fewest blocks that leave a chunk to the row that follows.
inline StreamPlan plan_stream(std::int64_t packs, std::size_t block_shared_bytes, bool writes) {
  StreamPlan plan;
  if (block_shared_bytes < stream_ring_offset + 2 * stream_slot_bytes) return plan;
  const std::size_t room = (block_shared_bytes - stream_ring_offset) / stream_slot_bytes;
  const std::int64_t slots = std::min<std::int64_t>(static_cast<std::int64_t>(room), max_stream_slots);
  for (int cluster = 1; cluster <= (writes ? max_stream_cluster : 1); cluster *= 2) {
    const std::int64_t slice = ((packs + cluster - 1) / cluster + 31) / 32 * 32;
    const std::int64_t chunks = (slice + stream_chunk_packs - 1) / stream_chunk_packs;
    if (writes && chunks + 1 > slots) continue;
    plan.shape = {static_cast<unsigned>(slots), static_cast<int>(slice)};
    plan.cluster = static_cast<unsigned>(cluster);
    plan.shared_bytes = stream_ring_offset + static_cast<std::size_t>(slots) * stream_slot_bytes;
    break;
  }
  return plan;
}

}  // namespace greyhound::cuda
