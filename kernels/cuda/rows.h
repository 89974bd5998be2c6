// Launch shapes of the kernels with one block per row. Of the CUDA backend; loss/row_loss.cuh needs it.
#pragma once

#include <greyhound/core/error.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace greyhound::cuda {

struct RowLaunch {
  int threads = 0;
  int cached_packs = 0;  // packs of 16 bytes of the row that the block keeps in shared memory
  std::size_t shared_bytes = 0;
};

// Threads follow from the row's length alone, so that sums have one order. Rows up to about 100 KiB are kept whole with
// at least two blocks to a multiprocessor, which overlap one's reads with the other's writes; a longer row takes all
// shared memory of a multiprocessor, and what is left of it is read again, out of L2.
inline RowLaunch row_launch(std::int64_t columns, std::size_t element_size, std::size_t max_shared_bytes,
                            bool cache_row) {
  constexpr std::size_t pack_bytes = 16;
  constexpr std::size_t static_bytes = 2048;  // reductions' shared memory, and what the system keeps of each block
  const std::size_t row_bytes = static_cast<std::size_t>(columns) * element_size;
  const std::int64_t packs = static_cast<std::int64_t>((row_bytes + pack_bytes - 1) / pack_bytes);
  const bool two_blocks = row_bytes <= max_shared_bytes / 2 - static_bytes;
  const std::int64_t most_threads = two_blocks ? 512 : 1024;
  RowLaunch launch;
  launch.threads = static_cast<int>(std::clamp<std::int64_t>((packs + 31) / 32 * 32, 32, most_threads));
  if (cache_row) {
    launch.cached_packs = static_cast<int>(
        std::min<std::int64_t>(packs, static_cast<std::int64_t>((max_shared_bytes - static_bytes) / pack_bytes)));
    launch.shared_bytes = static_cast<std::size_t>(launch.cached_packs) * pack_bytes;
  }
  return launch;
}

// Column numbers and grid sizes are 32 bits wide on the device; offsets are 64.
inline void require_row_sizes(std::int64_t rows, std::int64_t columns, const char* what) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max() - 65536;
  require(rows <= most && columns <= most, what, ": at most ", most, " rows and columns on CUDA, got ", rows, " and ",
          columns);
}

}  // namespace greyhound::cuda
