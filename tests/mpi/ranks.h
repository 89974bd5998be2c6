// The ranks that mpirun started, for tests that all of them run: what is checked must be known to every rank, since one
// that leaves a test alone would be waited for.
#pragma once

#include <greyhound/core/comm/launch.h>

#include <memory>

namespace greyhound::testing {

inline Communicator& ranks() {
  static const std::unique_ptr<Communicator> communicator = make_host_communicator();
  return *communicator;
}

}  // namespace greyhound::testing
