#include <greyhound/core/context.h>

#include <greyhound/core/cuda_runtime.h>
#include <greyhound/core/error.h>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace greyhound {

namespace {

int default_threads() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

}  // namespace

Context::Context(Device device, void* stream, int threads)
    : device_(device), stream_(stream), threads_(threads), cache_(std::make_shared<std::shared_ptr<void>>()) {}

Context Context::cpu(int threads) {
  require(threads >= 0, "context: ", threads, " threads");
  return Context(Device::cpu(), nullptr, threads == 0 ? default_threads() : threads);
}

Context Context::cuda(int device, void* stream) {
  const int count = cuda_device_count();
  if (count == 0) throw_runtime("context: no CUDA device: ", cuda_unavailable_reason());
  require(device >= 0 && device < count, "context: CUDA device ", device, " of ", count);
  cuda::require_usable(device);
  return Context(Device::cuda(device), stream, 1);
}

Context Context::with_stream(void* stream) const {
  require(device_.is_cuda() || stream == nullptr, "context: a CPU context has no streams");
  Context other = *this;
  other.stream_ = stream;
  return other;
}

void Context::synchronize() const {
  if (device_.is_cuda()) cuda::synchronize(device_.index, stream_);
}

}  // namespace greyhound
