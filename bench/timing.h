// Timing of work on a context beside the bare work that bounds it from below.
#pragma once

#include <greyhound/core/context.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace greyhound::bench {

using Work = std::function<void()>;

// Milliseconds of many calls.
struct Times {
  double median = 0;
  double p10 = 0, p90 = 0;  // the spread: a tenth of the calls were faster, a tenth slower
};

struct Comparison {
  Times work, floor;
  int repeats = 0;  // of each
};

// How many repeats: as many as fill `seconds`, but between the two bounds.
struct Repeats {
  double seconds = 0.5;
  int least = 5;
  int most = 200;
};

// Times `work` and `floor` in turn (work, floor, work, floor, ...), so that a drift of clocks or temperature hits both,
// after two untimed rounds. Each call is timed on its own: between two events of the stream on CUDA, where all calls
// are enqueued before the first is waited for; by the wall clock on the CPU.
Comparison compare(const Context& context, const Work& work, const Work& floor, const Repeats& repeats);

// Milliseconds of each work in each of `rounds` rounds, indexed [work][round].
std::vector<std::vector<double>> time_in_turn(const Context& context, const std::vector<const Work*>& works,
                                              int rounds);

// What the CUDA build adds: timing by events, and facts about the device (name, driver, versions).
using Facts = std::vector<std::pair<std::string, std::string>>;
namespace cuda {
std::vector<std::vector<double>> time_in_turn(const Context& context, const std::vector<const Work*>& works,
                                              int rounds);
Facts device_facts(const Context& context);
}  // namespace cuda

}  // namespace greyhound::bench
