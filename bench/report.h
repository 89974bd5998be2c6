// The rows of results that benchmarks print and write, and the environment that they were measured in.
#pragma once

#include "timing.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace greyhound::bench {

// A measurement beside the bare work of the same run that bounds it from below. Columns: README.md beside this file.
struct Row {
  std::string operation;
  std::string mode;  // "forward", "forward+backward"
  std::int64_t N = 0, D = 0, V = 0;
  std::string dtype;
  Comparison times;
  double rate = 0;  // TFLOP/s of products, TB/s of row kernels
  std::size_t workspace_bytes = 0;
  std::string budget;  // of the workspace; empty: has none
  std::int64_t chunk_rows = 0, chunks = 0;
};

void print_header();
void print(const Row& row);

// A JSON array with one object per row.
void write_rows(const std::string& path, const std::vector<Row>& rows);

// Device, libraries, command line and date: what figures have to name.
Facts environment(const Context& context, int argc, const char* const* argv);
// NAME.json has its environment beside it, in NAME.environment.json.
std::string environment_path(const std::string& rows_path);
void write_environment(const std::string& path, const Facts& facts);

}  // namespace greyhound::bench
