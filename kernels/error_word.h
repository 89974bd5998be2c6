// The error word: how device code reports bad data without reading out of bounds or stopping the device.
#pragma once

#include <cstdint>

namespace greyhound {

// Lives in device memory; zeroed by its owner. Kernels add to it in a fixed order.
struct ErrorWord {
  std::int64_t count;      // bad values seen
  std::int64_t first_row;  // row of the first one, meaningful when count > 0
  std::int64_t value;      // its value
};

}  // namespace greyhound
