// A rank that does not come: the others throw within the time-out, and name it. A program of its own, since the
// communicator is of no use afterwards.
#include <doctest/doctest.h>
#include <mpi.h>
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
std::string message_of_all_reduce(Communicator& communicator, std::int64_t elements, double& seconds) {
  const Clock::time_point start = Clock::now();
  std::string message;
  try {
    std::vector<float> values(static_cast<std::size_t>(elements), 1.0f);
    communicator.start_all_reduce(Context::cpu(), tensor(values.data(), DType::fp32, {elements}));
    communicator.join(Context::cpu());
  } catch (const Error& error) {
    message = error.what();
  }
  seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return message;
}

// Both made before one of them fails.
Communicator& ranks_for(std::int64_t elements) {
  ranks();  // initialises MPI
  static const std::unique_ptr<Communicator> others = wrap_mpi(MPI_Comm_c2f(MPI_COMM_WORLD));
  return elements == 1 ? *others : ranks();
}

}  // namespace

// With the last rank as the one that is missed. Of one element rank 0 makes the sum: where rank 2 is missed, rank 1
// lacks data of rank 0 alone, which waits itself and must not be named.
TEST_CASE("a rank that hangs is named after the time-out, and the communicator stays failed") {
  if (ranks().size() == 1) return;
  const int missing = ranks().size() - 1;
  for (const std::int64_t elements : {100000, 1}) {
    CAPTURE(elements);
    Communicator& communicator = ranks_for(elements);
    communicator.set_timeout(1);
    if (communicator.rank() == missing) {
      std::this_thread::sleep_for(std::chrono::seconds(4));
      continue;
    }
    double seconds = 0;
    const std::string message = message_of_all_reduce(communicator, elements, seconds);
    CAPTURE(message);
    CHECK(message.find(concat("no answer from rank ", missing, " (process ")) != std::string::npos);
    CHECK(message.find("in all_reduce for 1 s") != std::string::npos);
    CHECK(seconds < 3.5);
    CHECK(communicator.failed());
    CHECK_THROWS_AS(communicator.check(), Error);
    CHECK_THROWS_AS(communicator.barrier(Context::cpu()), Error);
    // The last rank is as late for the next one.
    std::this_thread::sleep_for(std::chrono::duration<double>(4 - seconds));
  }
}
