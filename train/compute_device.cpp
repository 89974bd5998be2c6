#include <greyhound/train/compute_device.h>

#include <greyhound/core/arena.h>
#include <greyhound/core/error.h>
#include <greyhound/kernels/matmul.h>

namespace greyhound {

namespace {

ComputeDevice take_cpu(const std::string& why_not_gpu) {
  const Context context = Context::cpu();
  return {nullptr, context,
          concat("CPU, ", context.threads(), context.threads() == 1 ? " thread" : " threads", ", products by ",
                 matmul_library(context)),
          why_not_gpu};
}

ComputeDevice take_gpu(int index) {
  // A stream of its own: the default one would wait for every other.
  auto stream = std::make_unique<Stream>(Context::cuda(index));
  const Context context = stream->context();
  return {std::move(stream), context, describe_gpu(cuda_device_info(index), cuda_versions()), ""};
}

}  // namespace

ComputeDevice choose_device(const std::string& wish, int gpu) {
  if (wish == "cpu") return take_cpu("");
  const bool available = cuda_device_count() > 0;
  if (wish == "auto") {
    if (!available) return take_cpu(cuda_unavailable_reason());
    try {
      return take_gpu(gpu);
    } catch (const Error& error) {  // in use by a program that wants it for itself, or out of order
      return take_cpu(error.what());
    }
  }
  require(available, "device cuda: ", cuda_unavailable_reason(), "; device cpu computes without a GPU");
  return take_gpu(gpu);
}

std::string describe_gpu(const CudaDeviceInfo& info, const CudaVersions& versions) {
  const std::string release = versions.driver_release.empty() ? "" : versions.driver_release + " ";
  return concat(info.name, ", compute capability ", info.compute_capability(), ", ",
                format_bytes(static_cast<double>(info.memory_bytes)), ", driver ", release, "(CUDA ",
                cuda_version_text(versions.driver), "), CUDA ", cuda_version_text(versions.runtime));
}

}  // namespace greyhound
