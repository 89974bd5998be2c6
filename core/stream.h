// Streams and events: work that runs beside a context's own, and points in the order of work that others wait for.
#pragma once

#include <greyhound/core/context.h>

#include <chrono>

namespace greyhound {

// A stream of its own on the device of a context. What is enqueued on context() runs beside the work of other streams;
// events put the two in order. On the CPU, where every call is done when it returns, there is nothing beside.
class GREYHOUND_API Stream {
 public:
  explicit Stream(const Context& beside);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const Context& context() const { return context_; }  // shares the caches of the context that it was made of

 private:
  Context context_;
};

// A point in the order of a stream's work. Made once, recorded many times; one that was never recorded is reached.
class GREYHOUND_API Event {
 public:
  explicit Event(const Context& context);  // of the context's device
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  // Becomes the point behind everything enqueued on the context's stream so far.
  void record(const Context& context);
  // What is enqueued on the context's stream from now on runs after this point. The host does not wait.
  void order_before(const Context& context) const;
  // The host waits until the point is reached; throws what went wrong on the device. Sleeps rather than spins.
  void wait() const;
  // Seconds from `earlier` to this point, measured on the device. Both were recorded and are reached.
  double seconds_since(const Event& earlier) const;

 private:
  Device device_;
  void* event_ = nullptr;                         // a cudaEvent_t
  std::chrono::steady_clock::time_point time_{};  // on the CPU
};

}  // namespace greyhound
