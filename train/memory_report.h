// Does a run fit, and if not, what would?
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/train/config.h>

#include <cstdint>
#include <string>

namespace greyhound {

// The largest micro-batch below `micro_batch` that trains in `free_bytes`, found by planning; 0 when not even one row
// fits.
std::int64_t largest_micro_batch(const Context& context, const Config& config, std::int64_t micro_batch,
                                 std::int64_t free_bytes);

// One line for an Error: bytes needed and free, the largest micro-batch that fits, the keys that shrink the run.
std::string out_of_memory_message(const Context& context, const Config& config, std::int64_t micro_batch,
                                  std::int64_t needed_bytes, std::int64_t free_bytes);

}  // namespace greyhound
