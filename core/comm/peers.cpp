#include <greyhound/core/comm/peers.h>

#include <greyhound/core/error.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

namespace greyhound {

namespace {

std::string contents_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Field 22 of /proc/PID/stat; 0 when there is no such process, or only what its parent has not collected yet.
std::int64_t start_of(std::int64_t pid) {
  const std::string text = contents_of("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t name_end = text.rfind(')');  // names hold anything
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string state, skipped;
  fields >> state;
  if (state == "Z" || state == "X") return 0;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  std::int64_t start = 0;
  return fields >> start ? start : 0;
}

// FNV-1a.
std::uint64_t hash(const std::string& text) {
  std::uint64_t value = 0xcbf29ce484222325ull;
  for (const char letter : text) value = (value ^ static_cast<unsigned char>(letter)) * 0x100000001b3ull;
  return value;
}

}  // namespace

std::uint64_t this_host() {
  const std::string boot = contents_of("/proc/sys/kernel/random/boot_id");
  return hash(boot.empty() ? this_process().host : boot);
}

ProcessId this_process() {
  ProcessId id{};
  gethostname(id.host, sizeof id.host - 1);
  // One kernel, and one numbering of its processes: containers have their own.
  struct stat numbering {};
  stat("/proc/self/ns/pid", &numbering);
  id.processes = hash(contents_of("/proc/sys/kernel/random/boot_id") + std::to_string(numbering.st_ino));
  id.pid = getpid();
  id.start = start_of(id.pid);
  return id;
}

bool Peers::alive(int rank) const {
  const ProcessId& own = processes_[static_cast<std::size_t>(rank_)];
  const ProcessId& other = processes_[static_cast<std::size_t>(rank)];
  if (other.processes != own.processes || own.start == 0 || other.start == 0) return true;  // nothing known against it
  return start_of(other.pid) == other.start;
}

int Peers::ended() const {
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != rank_ && !alive(rank)) return rank;
  }
  return -1;
}

std::string Peers::describe(int rank) const {
  const ProcessId& process = processes_[static_cast<std::size_t>(rank)];
  return concat("rank ", rank, " (process ", process.pid, " on ", process.host, ")");
}

}  // namespace greyhound
