#include <greyhound/core/stream.h>

#include <greyhound/core/cuda_runtime.h>

#include <utility>

namespace greyhound {

Stream::Stream(const Context& beside)
    : context_(beside.device().is_cuda() ? beside.with_stream(cuda::make_stream(beside.device().index)) : beside) {}

Stream::~Stream() {
  if (context_.device().is_cuda()) cuda::destroy_stream(context_.device().index, context_.stream());
}

Event::Event(const Context& context)
    : device_(context.device()), event_(device_.is_cuda() ? cuda::make_event(device_.index) : nullptr) {}

Event::~Event() {
  if (event_ != nullptr) cuda::destroy_event(device_.index, event_);
}

Event::Event(Event&& other) noexcept
    : device_(other.device_), event_(std::exchange(other.event_, nullptr)), time_(other.time_) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(event_, other.event_);
  std::swap(time_, other.time_);
  return *this;
}

void Event::record(const Context& context) {
  if (event_ != nullptr) {
    cuda::record_event(device_.index, event_, context.stream());
  } else {
    time_ = std::chrono::steady_clock::now();
  }
}

void Event::order_before(const Context& context) const {
  if (event_ != nullptr) cuda::wait_for_event(device_.index, context.stream(), event_);
}

void Event::wait() const {
  if (event_ != nullptr) cuda::synchronize_event(device_.index, event_);
}

double Event::seconds_since(const Event& earlier) const {
  if (event_ != nullptr) return cuda::seconds_between(device_.index, earlier.event_, event_);
  return std::chrono::duration<double>(time_ - earlier.time_).count();
}

}  // namespace greyhound
