// The one interface through which everything that a run must restore can be reached: weights, moments,
// Adam's t, RNG counters, loader position, skip counters, choices of algorithms.
#pragma once

#include <greyhound/core/tensor.h>

#include <cstdint>
#include <string>

namespace greyhound {

// Reads or writes state: a writer looks at each value, a reader replaces it. Names are unique within a
// run, parts separated by dots: "loader.position".
class StateVisitor {
 public:
  virtual ~StateVisitor() = default;
  virtual void tensor(const std::string& name, const Tensor& value) = 0;
  virtual void integer(const std::string& name, std::int64_t& value) = 0;
  virtual void real(const std::string& name, double& value) = 0;
  virtual void text(const std::string& name, std::string& value) = 0;
};

// Implemented by every part of a run that has something to restore.
class Stateful {
 public:
  virtual ~Stateful() = default;
  virtual void visit_state(StateVisitor& visitor) = 0;
};

}  // namespace greyhound
