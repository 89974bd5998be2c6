#include <greyhound/core/comm/gpu_identity.h>
#include <greyhound/core/comm/launch.h>
#include <greyhound/core/error.h>

namespace greyhound {

namespace {

[[noreturn]] void unavailable(const char* what) {
  throw_runtime(what,
                ": this build has no NCCL; configure with -DGREYHOUND_NCCL=ON and NCCL_ROOT, the folder of NVIDIA's "
                "libnccl-dev or of the pip wheel nvidia-nccl-cu13 (cu12)");
}

}  // namespace

std::unique_ptr<Communicator> wrap_nccl(const Context&, void*, void*) { unavailable("wrap_nccl"); }

std::unique_ptr<Communicator> make_device_communicator(std::unique_ptr<Communicator> host, const Context&) {
  if (host->size() == 1) return host;
  unavailable("several ranks on GPUs");
}

std::string gpu_identity(int) { unavailable("several ranks on GPUs"); }

int nccl_built_version() { return 0; }
int nccl_found_version() { return 0; }

}  // namespace greyhound
