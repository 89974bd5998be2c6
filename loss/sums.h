// LossSums: what the losses of one or many calls add up to, in the caller's device memory.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/kernels/cross_entropy.h>

#include <cstddef>

namespace greyhound::loss {

// LossSums as read on the host.
struct Report {
  double ce_sum = 0;      // sum of w ce over valid rows, without the z-loss
  double z_sum = 0;       // sum of w lse^2 over valid rows, whatever the multiplier
  double weight_sum = 0;  // sum of w over valid rows: their number when there are no weights
  std::int64_t n_valid = 0;
  std::int64_t nonfinite_rows = 0;  // valid rows with a NaN or infinite loss; counted, never thrown
  ErrorWord errors{};               // targets out of range

  // Means over the valid rows; 0 when there is none.
  double mean_ce() const { return weight_sum > 0 ? ce_sum / weight_sum : 0; }
  double mean_loss(double z_loss_multiplier = 0) const {
    return weight_sum > 0 ? (ce_sum + z_loss_multiplier * z_sum) / weight_sum : 0;
  }
  // Throws a runtime Error with row and value when a target was out of range.
  GREYHOUND_API void check() const;
};

// A handle to sums in the caller's memory. Construction enqueues nothing: reset before the first use. Calls add to
// the sums in the order of the stream.
class GREYHOUND_API LossSums {
 public:
  static constexpr std::size_t bytes = sizeof(LossSumsData);
  static constexpr std::size_t alignment = alignof(LossSumsData);

  // `storage`: `bytes` bytes on the context's device, aligned to `alignment`.
  LossSums(const Context& context, void* storage);

  void reset(const Context& context);

  // Waits for the stream, copies the sums to the host and throws when a target was out of range.
  Report read(const Context& context) const;
  // The same without the check: for a caller that wants to handle bad targets itself.
  Report read_unchecked(const Context& context) const;
  // Enqueues a copy to host memory (pinned, for the copy to be asynchronous), without synchronising.
  void read_async(const Context& context, LossSumsData* host) const;
  static Report report(const LossSumsData& host);

  LossSumsData* data() const { return data_; }

 private:
  LossSumsData* data_;
  Device device_;
};

}  // namespace greyhound::loss
