#include <doctest/doctest.h>
#include <greyhound/core/device_info.h>
#include <greyhound/core/error.h>

using namespace greyhound;

TEST_CASE("device info: versions are read as CUDA counts them") {
  CHECK(cuda_version_text(12080) == "12.8");
  CHECK(cuda_version_text(13000) == "13.0");
  CHECK(cuda_version_text(11010) == "11.1");
}

TEST_CASE("device info: every device has a name and memory; one that is not there is an error") {
  const int devices = cuda_device_count();
  for (int index = 0; index < devices; ++index) {
    const CudaDeviceInfo info = cuda_device_info(index);
    CHECK_FALSE(info.name.empty());
    CHECK(info.major >= 5);
    CHECK(info.multiprocessors > 0);
    CHECK(info.memory_bytes > 0);
  }
  if (devices > 0) {
    const CudaVersions versions = cuda_versions();
    CHECK(versions.built >= 12000);
    CHECK(versions.runtime >= 12000);
    CHECK(versions.driver >= 12000);
  }
  CHECK_THROWS_AS(cuda_device_info(devices), Error);
}
