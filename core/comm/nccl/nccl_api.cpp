#include <greyhound/core/comm/nccl/nccl_api.h>

#include <greyhound/core/comm/launch.h>
#include <greyhound/core/error.h>

#include <dlfcn.h>

#include <string>
#include <type_traits>

namespace greyhound {

namespace {

void* open_library() {
  // One that the program itself was linked with: the importer's communicators are its.
  if (dlsym(RTLD_DEFAULT, "ncclGetUniqueId") != nullptr) return RTLD_DEFAULT;
  std::string problems;
  for (const char* name : {"libnccl.so.2", GREYHOUND_NCCL_LIBRARY}) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
    problems += std::string(problems.empty() ? "" : "; ") + dlerror();
  }
  throw_runtime("several GPUs need NCCL, which is not there at run time (", problems,
                "): install NVIDIA's libnccl2 or the pip wheel nvidia-nccl-cu13 (cu12), and name its folder in "
                "LD_LIBRARY_PATH");
}

NcclApi load() {
  void* const library = open_library();
  NcclApi api{};
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) throw_runtime("NCCL has no function ", name, "; expected version 2.14 or later");
  };
  find(api.get_version, "ncclGetVersion");
  find(api.get_unique_id, "ncclGetUniqueId");
  find(api.comm_init_rank_config, "ncclCommInitRankConfig");
  find(api.comm_finalize, "ncclCommFinalize");
  find(api.comm_destroy, "ncclCommDestroy");
  find(api.comm_abort, "ncclCommAbort");
  find(api.comm_get_async_error, "ncclCommGetAsyncError");
  find(api.comm_count, "ncclCommCount");
  find(api.comm_user_rank, "ncclCommUserRank");
  find(api.comm_cu_device, "ncclCommCuDevice");
  find(api.get_error_string, "ncclGetErrorString");
  find(api.get_last_error, "ncclGetLastError");
  find(api.all_reduce, "ncclAllReduce");
  find(api.reduce_scatter, "ncclReduceScatter");
  find(api.all_gather, "ncclAllGather");
  find(api.broadcast, "ncclBroadcast");
  return api;
}

}  // namespace

const NcclApi& nccl() {
  static const NcclApi api = load();
  return api;
}

int nccl_built_version() { return NCCL_VERSION_CODE; }

int nccl_found_version() {
  try {
    int version = 0;
    return nccl().get_version(&version) == ncclSuccess ? version : 0;
  } catch (const Error&) {
    return 0;
  }
}

}  // namespace greyhound
