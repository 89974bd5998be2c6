// A rank that does not come: the others throw within the time-out, and name it. A program of its own, since the
// communicator is of no use afterwards.
#include <doctest/doctest.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "ranks.h"

using namespace greyhound;
using namespace greyhound::testing;

namespace {

using Clock = std::chrono::steady_clock;

// What the collective throws, and after how long.
template <class Collective>
std::string message_of(Collective&& collective, double& seconds) {
  const Clock::time_point start = Clock::now();
  std::string message;
  try {
    collective();
  } catch (const Error& error) {
    message = error.what();
  }
  seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return message;
}

// A sum that runs beside the caller where the communicator can.
void all_reduce(Communicator& communicator, std::int64_t elements) {
  std::vector<float> values(static_cast<std::size_t>(elements), 1.0f);
  communicator.start_all_reduce(Context::cpu(), tensor(values.data(), DType::fp32, {elements}));
  communicator.join(Context::cpu());
  CHECK(values.back() == static_cast<float>(communicator.size()));
}

void check_failed(Communicator& communicator) {
  CHECK(communicator.failed());
  CHECK_THROWS_AS(communicator.check(), Error);
  CHECK_THROWS_AS(communicator.barrier(Context::cpu()), Error);
}

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// The last rank is late; the others name it.
void check_late_rank(Communicator& communicator, std::int64_t elements) {
  CAPTURE(elements);
  const int missing = communicator.size() - 1;
  communicator.set_timeout(1);
  if (communicator.rank() == missing) return sleep_for(4);
  double seconds = 0;
  const std::string message = message_of([&] { all_reduce(communicator, elements); }, seconds);
  CAPTURE(message);
  CHECK(message.find(concat("no answer from rank ", missing, " (process ")) != std::string::npos);
  CHECK(message.find("in all_reduce for 1 s") != std::string::npos);
  CHECK(seconds < 3.5);
  check_failed(communicator);
  sleep_for(4 - seconds);  // until the last rank is there
}

}  // namespace

TEST_CASE("a rank that comes while the others ask who waits is waited for") {
  if (ranks().size() == 1) return;
  ranks().set_timeout(1);
  ranks().barrier(Context::cpu());
  if (ranks().rank() == 0) sleep_for(1.5);
  all_reduce(ranks(), 100000);
  all_reduce(ranks(), 1);
}

TEST_CASE("a broadcast that has failed writes nothing any more") {
  if (ranks().size() == 1) return;
  const std::unique_ptr<Communicator> communicator = wrap_mpi(MPI_Comm_c2f(MPI_COMM_WORLD));
  communicator->set_timeout(1);
  const bool root = communicator->is_root();
  if (root) sleep_for(3);
  std::vector<float> values(180000, root ? 1.0f : -1.0f);
  double seconds = 0;
  const std::string message = message_of(
      [&] { communicator->broadcast(Context::cpu(), tensor(values.data(), DType::fp32, {180000})); }, seconds);
  CAPTURE(message);
  if (!root) CHECK(message.find("no answer from rank 0 (process ") != std::string::npos);
  MPI_Barrier(MPI_COMM_WORLD);  // the root's messages have had their time
  CHECK(std::count(values.begin(), values.end(), root ? 1.0f : -1.0f) == 180000);
}

TEST_CASE("ranks that wait for different things are told so") {
  if (ranks().size() == 1) return;
  const std::unique_ptr<Communicator> communicator = wrap_mpi(MPI_Comm_c2f(MPI_COMM_WORLD));
  communicator->set_timeout(1);
  double seconds = 0;
  const std::string message = message_of(
      [&] { communicator->rank() == 0 ? communicator->barrier(Context::cpu()) : all_reduce(*communicator, 1); },
      seconds);
  CAPTURE(message);
  CHECK(message.find("all ranks wait, this one for " +
                     std::string(communicator->rank() == 0 ? "the others" : "rank 0 ")) != std::string::npos);
  CHECK(seconds > 2);
  CHECK(seconds < 8);
  check_failed(*communicator);
}

TEST_CASE("a rank that hangs is named after the time-out, and the communicator stays failed") {
  if (ranks().size() == 1) return;
  const std::unique_ptr<Communicator> others = wrap_mpi(MPI_Comm_c2f(MPI_COMM_WORLD));  // while all ranks are there
  check_late_rank(ranks(), 100000);
  // Rank 0 makes the sum of one element: of three ranks, rank 1 lacks data of rank 0 alone, which waits itself.
  check_late_rank(*others, 1);
}
