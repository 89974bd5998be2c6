#include "timing.h"

#include <greyhound/core/error.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>

namespace greyhound::bench {

double median_milliseconds(const Context& context, const std::function<void()>& work, int repeats, double seconds) {
  using Clock = std::chrono::steady_clock;
  work();
  context.synchronize();
  std::vector<double> times;
  const Clock::time_point start = Clock::now();
  while (static_cast<int>(times.size()) < repeats ||
         std::chrono::duration<double>(Clock::now() - start).count() < seconds) {
    const Clock::time_point begin = Clock::now();
    work();
    context.synchronize();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

void print_header() {
  std::printf("%-30s %-17s %6s %6s %7s %5s %10s %10s %6s %9s %12s\n", "operation", "mode", "N", "D", "V", "dtype", "ms",
              "floor ms", "ratio", "T(FLOP|B)/s", "workspace");
}

void print(const Row& row) {
  std::printf("%-30s %-17s %6lld %6lld %7lld %5s %10.3f %10.3f %6.2f %9.3f %10.1fMB\n", row.operation.c_str(),
              row.mode.c_str(), static_cast<long long>(row.N), static_cast<long long>(row.D),
              static_cast<long long>(row.V), row.dtype.c_str(), row.milliseconds, row.floor_milliseconds,
              row.milliseconds / row.floor_milliseconds, row.rate, static_cast<double>(row.workspace_bytes) * 1e-6);
  std::fflush(stdout);
}

void write_json(const std::string& path, const std::vector<Row>& rows) {
  nlohmann::json all = nlohmann::json::array();
  for (const Row& row : rows) {
    all.push_back({{"operation", row.operation},
                   {"mode", row.mode},
                   {"N", row.N},
                   {"D", row.D},
                   {"V", row.V},
                   {"dtype", row.dtype},
                   {"milliseconds", row.milliseconds},
                   {"floor_milliseconds", row.floor_milliseconds},
                   {"ratio", row.milliseconds / row.floor_milliseconds},
                   {"rate", row.rate},
                   {"workspace_bytes", row.workspace_bytes}});
  }
  std::ofstream file(path);
  if (!(file << all.dump(1) << '\n')) throw_runtime(path, ": cannot be written");
}

}  // namespace greyhound::bench
