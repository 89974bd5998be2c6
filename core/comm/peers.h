// Which of the ranks' processes are still there, as far as this host can tell. Internal.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace greyhound {

// Where a rank runs. Exchanged as bytes.
struct ProcessId {
  char host[64];            // name, for messages
  std::uint64_t processes;  // of the same value: processes that see each other under their numbers
  std::int64_t pid;
  std::int64_t start;  // when the system started it, in its own unit; numbers are given to new processes. 0: unknown
};
static_assert(std::is_trivially_copyable_v<ProcessId>);

ProcessId this_process();
std::uint64_t this_host();  // the same for all processes under one kernel

class Peers {
 public:
  Peers() = default;
  // The processes of all ranks, in order; `rank` is this one's.
  Peers(std::vector<ProcessId> processes, int rank) : processes_(std::move(processes)), rank_(rank) {}

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(processes_.size()); }

  // False when the rank runs on this host and its process has ended. Takes microseconds.
  bool alive(int rank) const;
  // The first rank that is known to have ended, or -1.
  int ended() const;
  // "rank 2 (process 4711 on node3)".
  std::string describe(int rank) const;

 private:
  std::vector<ProcessId> processes_;
  int rank_ = 0;
};

}  // namespace greyhound
