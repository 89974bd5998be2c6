// Timing of work on a context, and the rows of results that benchmarks print and write.
#pragma once

#include <greyhound/core/context.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace greyhound::bench {

// Median wall time of `work` in milliseconds, the context drained before and after each call: at least `repeats` calls
// after one that warms up, and until `seconds` have passed.
double median_milliseconds(const Context& context, const std::function<void()>& work, int repeats = 5,
                           double seconds = 0.5);

// A measurement beside the bare work of the same run that bounds it from below.
struct Row {
  std::string operation;
  std::string mode;  // "forward", "forward+backward"
  std::int64_t N = 0, D = 0, V = 0;
  std::string dtype;
  double milliseconds = 0;
  double floor_milliseconds = 0;
  double rate = 0;  // TFLOP/s of products, TB/s of row kernels
  std::size_t workspace_bytes = 0;
};

void print_header();
void print(const Row& row);
void write_json(const std::string& path, const std::vector<Row>& rows);

}  // namespace greyhound::bench
