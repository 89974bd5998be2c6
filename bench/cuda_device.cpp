#include "timing.h"

#include <greyhound/core/cuda/cuda_check.h>
#include <greyhound/core/cuda/device_scope.h>

#include <fstream>

namespace greyhound::bench::cuda {

using greyhound::cuda::check;

namespace {

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { (void)cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(const Context& context) {
    check(cudaEventRecord(event_, greyhound::cuda::stream_of(context.stream())), "cudaEventRecord");
  }
  double milliseconds_since(const Event& begin) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin.event_, event_), "cudaEventElapsedTime");
    return milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

std::string dotted(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

// The kernel driver's own version; what the runtime reports is only the CUDA version that it supports.
std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word;
  while (file >> word) {
    if (word.find_first_not_of("0123456789.") == std::string::npos && word.find('.') != std::string::npos) return word;
  }
  return "unknown";
}

}  // namespace

std::vector<std::vector<double>> time_in_turn(const Context& context, const std::vector<const Work*>& works,
                                              int rounds) {
  const greyhound::cuda::DeviceScope device(context);
  // One event between any two calls: the end of one is the beginning of the next.
  std::vector<Event> events(works.size() * static_cast<std::size_t>(rounds) + 1);
  std::size_t at = 0;
  events[at].record(context);
  for (int round = 0; round < rounds; ++round) {
    for (const Work* work : works) {
      (*work)();
      events[++at].record(context);
    }
  }
  context.synchronize();

  std::vector<std::vector<double>> times(works.size());
  for (std::size_t i = 0; i < at; ++i) times[i % works.size()].push_back(events[i + 1].milliseconds_since(events[i]));
  return times;
}

Facts device_facts(const Context& context) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, context.device().index), "cudaGetDeviceProperties");
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  return {{"device", properties.name},
          {"compute_capability", std::to_string(properties.major) + "." + std::to_string(properties.minor)},
          {"multiprocessors", std::to_string(properties.multiProcessorCount)},
          {"memory_bytes", std::to_string(properties.totalGlobalMem)},
          {"driver", driver_version()},
          {"driver_cuda", dotted(driver)},
          {"cuda_runtime", dotted(runtime)}};
}

}  // namespace greyhound::bench::cuda
