#include "test_files.h"

#include <doctest/doctest.h>
#include <greyhound/train/compute_device.h>
#include <greyhound/train/gpu_peak.h>

#include <optional>

using namespace greyhound;
using namespace greyhound::testing;

TEST_CASE("peak: by the device's full name, nothing for the unknown and for parts of a GPU") {
  const struct {
    const char* name;
    double teraflops;  // 0: unknown
  } cases[] = {
      {"NVIDIA H200", 989},
      {"NVIDIA H200 NVL", 835.5},
      {"NVIDIA H100 80GB HBM3", 989},
      {"NVIDIA H100 PCIe", 756},
      {"NVIDIA GH200 480GB", 989},
      {"NVIDIA A100-SXM4-80GB", 312},
      {"NVIDIA A100-PCIE-40GB", 312},
      {"NVIDIA A100 80GB PCIe", 312},
      {"NVIDIA A10", 125},
      {"NVIDIA L4", 121},
      {"NVIDIA L40", 181},
      {"NVIDIA H200 MIG 1g.18gb", 0},
      {"NVIDIA A100-SXM4-40GB MIG 1g.5gb", 0},
      {"NVIDIA GeForce RTX 4090 Laptop GPU", 0},
      {"NVIDIA H900", 0},
      {"H200", 0},
      {"", 0},
  };
  for (const auto& test : cases) {
    CAPTURE(test.name);
    CHECK(bf16_peak_flops(test.name).value_or(0) == doctest::Approx(test.teraflops * 1e12));
  }
}

TEST_CASE("device: cpu is the CPU, auto takes a GPU where there is one and otherwise says why not") {
  const ComputeDevice cpu = choose_device("cpu");
  CHECK(cpu.context.device() == Device::cpu());
  CHECK(cpu.description.rfind("CPU, ", 0) == 0);
  CHECK(cpu.why_not_gpu.empty());
  const ComputeDevice automatic = choose_device("auto");
  if (cuda_device_count() > 0) {
    CHECK(automatic.context.device() == Device::cuda(0));
    CHECK(automatic.context.stream() != nullptr);
    CHECK(contains(automatic.description, "compute capability"));
    CHECK(choose_device("cuda").context.device() == Device::cuda(0));
  } else {
    CHECK(automatic.context.device() == Device::cpu());
    CHECK(automatic.why_not_gpu == cuda_unavailable_reason());
    const std::string error = error_of([] { choose_device("cuda"); });
    CHECK(contains(error, "2: device cuda: "));
    CHECK(contains(error, cuda_unavailable_reason()));
    CHECK(contains(error, "device cpu"));
  }
}

TEST_CASE("device: a GPU is described by name, memory, driver and CUDA") {
  CudaDeviceInfo info;
  info.name = "NVIDIA H200";
  info.major = 9;
  info.memory_bytes = std::int64_t{139} << 30;
  CHECK(describe_gpu(info, {12080, 12080, 12090, "575.57.08"}) ==
        "NVIDIA H200, compute capability 9.0, 139.0 GiB, driver 575.57.08 (CUDA 12.9), CUDA 12.8");
  CHECK(contains(describe_gpu(info, {12080, 12080, 12090, ""}), "driver (CUDA 12.9)"));
}
