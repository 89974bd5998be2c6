#include <greyhound/train/compute_device.h>

#include <greyhound/core/error.h>
#include <greyhound/kernels/matmul.h>

namespace greyhound {

namespace {

// The one place that knows that the model's operators have no CUDA implementation.
constexpr const char* no_cuda_training =
    "this version of greyhound trains on the CPU; its CUDA code is the loss module";

std::string why_not_cuda() { return cuda_device_count() == 0 ? cuda_unavailable_reason() : no_cuda_training; }

}  // namespace

ComputeDevice choose_device(const std::string& wish) {
  require(wish != "cuda", "run.device cuda: ", no_cuda_training, "; use run.device=cpu or auto");
  const Context context = Context::cpu();
  return {context,
          concat("CPU, ", context.threads(), context.threads() == 1 ? " thread" : " threads", ", products by ",
                 matmul_library(context)),
          wish == "auto" ? why_not_cuda() : ""};
}

}  // namespace greyhound
