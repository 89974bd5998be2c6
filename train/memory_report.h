// Does a run fit, and if not, what would?
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/train/config.h>
#include <greyhound/train/training_buffers.h>

#include <cstdint>
#include <string>

namespace greyhound {

// What one rank of the run takes on the context's device with micro-batches of `micro_batch` rows. On a CPU device that
// includes the loader's rows, region "host batch".
ArenaPlan memory_plan(const Context& context, const Config& config, std::int64_t micro_batch, std::int64_t ranks = 1);

// What a plan may take of the device's free memory: on a GPU, not what CUDA loads later, kernels at their first call.
std::int64_t memory_for_plan(Device device);

// Bytes of the loader's rows, in host memory whatever the device.
std::int64_t host_batch_bytes(const Config& config, std::int64_t micro_batch, std::int64_t ranks);

// Ranks of the run that share this host's memory: as the launcher says, otherwise all of them.
std::int64_t ranks_on_host(std::int64_t ranks);

// The largest micro-batch below `micro_batch` that trains in `free_bytes`, found by planning; 0 when not even one row
// fits.
std::int64_t largest_micro_batch(const Context& context, const Config& config, std::int64_t micro_batch,
                                 std::int64_t free_bytes, std::int64_t ranks = 1);

// One line for an Error: bytes needed and free, the largest micro-batch that fits, the keys that shrink what takes the
// most memory.
std::string out_of_memory_message(const Context& context, const Config& config, std::int64_t micro_batch,
                                  std::int64_t needed_bytes, std::int64_t free_bytes, std::int64_t ranks = 1);

}  // namespace greyhound
