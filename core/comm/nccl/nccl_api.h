// NCCL's functions, looked up when the first of them is needed: a program that was built with NCCL starts, and uses one
// GPU, where the library is absent. Internal.
#pragma once

#include <nccl.h>

namespace greyhound {

struct NcclApi {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config;
  decltype(&ncclCommFinalize) comm_finalize;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclCommAbort) comm_abort;
  decltype(&ncclCommGetAsyncError) comm_get_async_error;
  decltype(&ncclCommCount) comm_count;
  decltype(&ncclCommUserRank) comm_user_rank;
  decltype(&ncclCommCuDevice) comm_cu_device;
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGetLastError) get_last_error;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclBroadcast) broadcast;
};

// The NCCL that the program has loaded already, else libnccl.so.2 as the system finds it, else the one that this build
// found. Throws a runtime Error that says where to get it.
const NcclApi& nccl();

}  // namespace greyhound
