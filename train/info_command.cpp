#include <greyhound/core/arena.h>
#include <greyhound/core/device_info.h>
#include <greyhound/core/error.h>
#include <greyhound/core/memory.h>
#include <greyhound/train/commands.h>
#include <greyhound/train/compute_device.h>
#include <greyhound/train/console.h>
#include <greyhound/train/gpu_peak.h>
#include <greyhound/train/version.h>

#include <cstdio>

namespace greyhound {

namespace {

std::string gpu_lines() {
  std::string lines;
  const int gpus = cuda_device_count();
  for (int index = 0; index < gpus; ++index) {
    const CudaDeviceInfo info = cuda_device_info(index);
    lines += concat("  cuda:", index, "    ", describe_gpu(info, cuda_versions()), ", ");
    try {
      lines += format_bytes(static_cast<double>(available_memory(Device::cuda(index)))) + " free";
    } catch (const Error& error) {
      lines += error.what();
    }
    const std::optional<double> peak = bf16_peak_flops(info.name);
    lines += peak ? concat(", ", *peak * 1e-12, " TFLOP/s of dense bf16\n") : ", bf16 peak unknown: no MFU\n";
  }
  return lines;
}

// What a person can do about a GPU that is missing or driven by old software; empty where there is nothing to do.
std::string advice() {
  const CudaVersions versions = cuda_versions();
  if (versions.built == 0) return "";  // why_not_gpu says it
  if (versions.driver == 0) return "for a GPU: install NVIDIA's driver; nvidia-smi shows whether it is there\n";
  if (versions.driver >= versions.built || cuda_device_count() == 0) return "";
  return concat("the driver is made for CUDA ", cuda_version_text(versions.driver), ", this build for ",
                cuda_version_text(versions.built),
                ": that works within one major version; install a newer driver if kernels do not load\n");
}

}  // namespace

void info_command() {
  const ComputeDevice device = choose_device("auto");
  std::string text = version_text() + "\ndevices\n  cpu       " + choose_device("cpu").description + "\n" + gpu_lines();
  text += "device: auto takes " + to_string(device.context.device());
  text += device.why_not_gpu.empty() ? "\n" : ": " + device.why_not_gpu + "\n";
  std::fputs((text + advice()).c_str(), stdout);
  require_output_written();
}

}  // namespace greyhound
