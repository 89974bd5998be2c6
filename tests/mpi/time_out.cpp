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

// The last rank is late; the others name it.
void check_late_rank(Communicator& communicator, std::int64_t elements) {
  CAPTURE(elements);
  const int missing = communicator.size() - 1;
  communicator.set_timeout(1);
  if (communicator.rank() == missing) {
    std::this_thread::sleep_for(std::chrono::seconds(4));
    return;
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
  std::this_thread::sleep_for(std::chrono::duration<double>(4 - seconds));  // until the last rank is there
}

}  // namespace

TEST_CASE("a rank that hangs is named after the time-out, and the communicator stays failed") {
  if (ranks().size() == 1) return;
  const std::unique_ptr<Communicator> others = wrap_mpi(MPI_Comm_c2f(MPI_COMM_WORLD));  // while all ranks are there
  check_late_rank(ranks(), 100000);
  // Rank 0 makes the sum of one element: of three ranks, rank 1 lacks data of rank 0 alone, which waits itself.
  check_late_rank(*others, 1);
}
