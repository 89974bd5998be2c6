// Which rank may take which GPU: pure bookkeeping, on any machine.
#include <doctest/doctest.h>
#include <greyhound/core/comm/launch.h>

#include <string>
#include <vector>

using namespace greyhound;

namespace {

std::string error_of(const std::vector<GpuClaim>& claims) {
  try {
    require_gpus(claims);
  } catch (const Error& error) {
    return concat(error.exit_code(), ": ", error.what());
  }
  return "";
}

}  // namespace

TEST_CASE("GPUs of ranks: one each, on one host and on several") {
  CHECK(error_of({{1, "a", 2, "GPU-0", "not set"}, {1, "a", 2, "GPU-1", "not set"}}) == "");
  // Every process is shown its own device as number 0; other hosts count for themselves.
  CHECK(error_of({{1, "a", 1, "GPU-0", "0"}, {1, "a", 1, "GPU-1", "1"}, {2, "b", 1, "GPU-2", "0"}}) == "");
  CHECK(error_of({{1, "a", 1, "GPU-0", "0"}, {2, "b", 1, "GPU-0", "0"}}) == "");
}

TEST_CASE("GPUs of ranks: more ranks than GPUs is an error with local rank, devices and CUDA_VISIBLE_DEVICES") {
  CHECK(error_of({{2, "b", 8, "GPU-9", "not set"},
                  {1, "a", 2, "GPU-0", "4,5"},
                  {1, "a", 2, "GPU-1", "4,5"},
                  {1, "a", 2, "GPU-0", "4,5"}}) ==
        "2: more ranks than GPUs: rank 3 (local rank 2 of 3 on a) sees 2 GPUs (CUDA_VISIBLE_DEVICES = 4,5) and would "
        "share GPU-0 with local rank 0; expected at most one rank for each GPU of a host");
  CHECK(error_of({{1, "a", 1, "GPU-0", "not set"}, {1, "a", 0, "", "not set"}}) ==
        "2: rank 1 (local rank 1 of 2 on a) sees 0 GPUs (CUDA_VISIBLE_DEVICES not set); expected one for each rank");
}
