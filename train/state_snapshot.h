// The state of a run as it stood between two steps, in host memory, so that it can be written while the next steps run.
#pragma once

#include <greyhound/core/arena.h>
#include <greyhound/core/context.h>
#include <greyhound/core/state.h>

#include <cstdint>
#include <map>
#include <string>
#include <variant>

namespace greyhound {

using StateValue = std::variant<std::int64_t, double, std::string>;

class StateSnapshot {
 public:
  explicit StateSnapshot(const Context& context) : context_(context) {}

  // Allocates memory for copies of all tensors of `state`; every take() then copies into it. Without it, take() refers
  // to tensors that are in host memory where they are.
  void reserve(Stateful& state);

  // Waits for the device.
  void take(Stateful& state);

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }  // contiguous, in host memory
  const std::map<std::string, StateValue>& values() const { return values_; }

 private:
  Context context_;
  Arena arena_;
  std::map<std::string, Tensor> copies_;  // in arena_
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, StateValue> values_;
};

}  // namespace greyhound
