// Context: where work is enqueued. A device, a stream, and a slot for the caches of kernels/.
#pragma once

#include <greyhound/core/device.h>

#include <memory>

namespace greyhound {

// Copying a Context is cheap; copies share their caches. One Context must not be used by two host
// threads at once, and neither must two copies of it; several contexts may.
class GREYHOUND_API Context {
 public:
  // Runs on the calling host thread with `threads` OpenMP threads (0: OpenMP's own choice). Results do
  // not depend on the number of threads.
  static Context cpu(int threads = 0);

  // Enqueues on `stream`, a cudaStream_t of `device` (nullptr: the default stream). The stream stays the
  // caller's. Throws when the device cannot be used.
  static Context cuda(int device = 0, void* stream = nullptr);

  // The same device and caches on another stream.
  Context with_stream(void* stream) const;

  Device device() const { return device_; }
  void* stream() const { return stream_; }  // a cudaStream_t; nullptr on the CPU
  int threads() const { return threads_; }  // 1 on CUDA

  // Waits until everything enqueued on the stream is done; throws what went wrong there.
  void synchronize() const;

  // The slot that kernels/ fills with its handles and caches (core knows nothing of what they are). Made
  // at the first call; every caller must ask for the same T.
  template <class T>
  T& cache() const {
    if (!*cache_) *cache_ = std::make_shared<T>();
    return *static_cast<T*>(cache_->get());
  }

 private:
  Context(Device device, void* stream, int threads);

  Device device_;
  void* stream_ = nullptr;
  int threads_ = 1;
  std::shared_ptr<std::shared_ptr<void>> cache_;
};

}  // namespace greyhound
