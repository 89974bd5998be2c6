// A rank that does not come: the others throw within the time-out, and name it. A program of its own, since the
// communicator is of no use afterwards.
#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "ranks.h"

using namespace greyhound;
using namespace greyhound::testing;

namespace {

using Clock = std::chrono::steady_clock;

// What all_reduce throws, and after how long.
std::string message_of_all_reduce(double& seconds) {
  const Clock::time_point start = Clock::now();
  std::string message;
  try {
    std::vector<float> values(100000, 1.0f);
    ranks().start_all_reduce(Context::cpu(), tensor(values.data(), DType::fp32, {100000}));
    ranks().join(Context::cpu());
  } catch (const Error& error) {
    message = error.what();
  }
  seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return message;
}

}  // namespace

// With the last rank as the one that is missed.
TEST_CASE("a rank that hangs is named after the time-out, and the communicator stays failed") {
  if (ranks().size() == 1) return;
  ranks().set_timeout(1);
  const int missing = ranks().size() - 1;
  if (ranks().rank() == missing) {
    std::this_thread::sleep_for(std::chrono::seconds(3));
  } else {
    double seconds = 0;
    const std::string message = message_of_all_reduce(seconds);
    CAPTURE(message);
    CHECK(message.find(concat("no answer from rank ", missing, " (process ")) != std::string::npos);
    CHECK(message.find("in all_reduce for 1 s") != std::string::npos);
    CHECK(seconds < 2.5);
    CHECK(ranks().failed());
    CHECK_THROWS_AS(ranks().check(), Error);
    CHECK_THROWS_AS(ranks().barrier(Context::cpu()), Error);
  }
}
