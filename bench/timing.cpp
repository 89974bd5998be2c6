#include "timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>

namespace greyhound::bench {

namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::vector<double>> time_on_host(const std::vector<const Work*>& works, int rounds) {
  std::vector<std::vector<double>> times(works.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < works.size(); ++i) {
      const Clock::time_point begin = Clock::now();
      (*works[i])();
      times[i].push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    }
  }
  return times;
}

Times summary(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const auto at = [&](double fraction) {
    return times[static_cast<std::size_t>(std::lround(fraction * static_cast<double>(times.size() - 1)))];
  };
  return {at(0.5), at(0.1), at(0.9)};
}

}  // namespace

std::vector<std::vector<double>> time_in_turn(const Context& context, const std::vector<const Work*>& works,
                                              int rounds) {
  return context.device().is_cuda() ? cuda::time_in_turn(context, works, rounds) : time_on_host(works, rounds);
}

Comparison compare(const Context& context, const Work& work, const Work& floor, const Repeats& repeats) {
  const std::vector<const Work*> works{&work, &floor};
  // The first round makes what is made once (handles, modules); the second says how long a round takes.
  time_in_turn(context, works, 1);
  const auto estimate = time_in_turn(context, works, 1);
  const double round_seconds = 1e-3 * (estimate[0][0] + estimate[1][0]);
  Comparison result;
  result.repeats = static_cast<int>(std::clamp(repeats.seconds / std::max(round_seconds, 1e-9),
                                               static_cast<double>(repeats.least), static_cast<double>(repeats.most)));
  const auto times = time_in_turn(context, works, result.repeats);
  result.work = summary(times[0]);
  result.floor = summary(times[1]);
  return result;
}

}  // namespace greyhound::bench
