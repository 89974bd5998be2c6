// What the host learns of a training step, without the device waiting for the host.
#pragma once

#include <greyhound/core/host_buffer.h>
#include <greyhound/core/stream.h>
#include <greyhound/loss/sums.h>

#include <array>

namespace greyhound {

// Loss and gradient norm of a step are copied into page-locked memory behind its work, and read when the host asks:
// by then the device may be a step further. Holds up to `capacity` steps, in their order.
class StepReadback {
 public:
  static constexpr int capacity = 2;

  explicit StepReadback(const Context& context);

  // What is enqueued from here on belongs to the next step.
  void begin(const Context& context);
  // Its work ends here. sums, norm [1] fp32: on the device.
  void end(const Context& context, const loss::LossSums& sums, const ConstTensor& norm);
  int pending() const { return pending_; }  // steps that ended and were not taken

  struct Values {
    loss::Report report;
    float grad_norm = 0;
    double seconds = 0;  // from begin to end, on the device
  };
  // Of the oldest step, which is pending no more; waits for it. Throws when a target was out of range.
  Values take();

 private:
  struct Record {
    LossSumsData sums;
    float norm;
  };
  Record& record(int slot) const { return static_cast<Record*>(host_.data())[slot]; }
  int next() const { return (oldest_ + pending_) % capacity; }

  HostBuffer host_;  // a Record for each slot
  std::array<Event, capacity> begin_, end_;
  int oldest_ = 0, pending_ = 0;
};

}  // namespace greyhound
