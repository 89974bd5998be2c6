// What a device makes of bare work, as the floor of a step's parts.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/dtype.h>

namespace greyhound::bench {

struct DeviceRates {
  double operations = 0;  // a second, of a large square product in this dtype
  double bytes = 0;       // a second, read and written by a large copy
};

// Measured now. Takes about half a gigabyte on CUDA.
DeviceRates measure_rates(const Context& context, DType dtype);

}  // namespace greyhound::bench
