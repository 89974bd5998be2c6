// MPI messages under way, and waiting for them without hanging when a rank is lost. Internal.
#pragma once

#include <greyhound/core/comm/peers.h>

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace greyhound {

// Throws a runtime Error with MPI's text.
void check_mpi(int status, const char* what);

class MpiMessages {
 public:
  MpiMessages(MPI_Comm comm, const Peers& peers) : comm_(comm), peers_(peers) {}

  // Up to 2^31 - 1 bytes; messages of no bytes are left out on both sides.
  void receive(void* to, std::int64_t bytes, int from, int tag);
  void send(const void* data, std::int64_t bytes, int to, int tag);
  void barrier();

  // Until all of them have arrived. Throws a runtime Error when a rank has ended, on a time-out, after cancel() and
  // when that happened before. `what` is the collective, for the message. Where the time is up and yet no rank hangs,
  // it is given once more.
  void wait(const char* what);

  void set_timeout(double seconds) { timeout_ = seconds; }
  void cancel() { cancelled_ = true; }  // from another thread
  const std::string& failure() const { return failure_; }

 private:
  static constexpr int everybody = -1;

  MPI_Request& add(int rank);  // of a message from or to it; throws after a failure
  bool arrived(const char* what);
  std::set<int> missing() const;  // the ranks whose messages have not come
  std::string describe(const std::set<int>& ranks) const;

  // A rank whose time is up asks all others whether they wait too: who waits answers, and is not the one that hangs,
  // though its data may be missing. Signals are messages of no bytes. None of these throws.
  std::set<int> silent_ranks();
  void answer_questions();
  void signal(int rank, int tag);
  int take_signal(int tag);  // the rank a signal has come from, or -1

  [[noreturn]] void fail(const std::string& message);

  MPI_Comm comm_;
  Peers peers_;
  std::vector<MPI_Request> requests_;
  std::vector<int> ranks_;  // at the other end of each
  std::atomic<double> timeout_{0};
  std::atomic<bool> cancelled_{false};
  std::string failure_;
};

}  // namespace greyhound
