#include <greyhound/core/comm/mpi/mpi_messages.h>

#include <greyhound/core/error.h>

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace greyhound {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int question_tag = 100, answer_tag = 101;  // those of data are smaller
constexpr auto between_looks = std::chrono::milliseconds(100);
constexpr auto answers_within = std::chrono::seconds(1);

}  // namespace

void check_mpi(int status, const char* what) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw_runtime("MPI: ", what, ": ", std::string(text, static_cast<std::size_t>(length)));
}

void MpiMessages::receive(void* to, std::int64_t bytes, int from, int tag) {
  if (bytes == 0) return;
  check_mpi(MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE, from, tag, comm_, &add(from)), "MPI_Irecv");
}

void MpiMessages::send(const void* data, std::int64_t bytes, int to, int tag) {
  if (bytes == 0) return;
  check_mpi(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, comm_, &add(to)), "MPI_Isend");
}

void MpiMessages::barrier() { check_mpi(MPI_Ibarrier(comm_, &add(everybody)), "MPI_Ibarrier"); }

MPI_Request& MpiMessages::add(int rank) {
  if (!failure_.empty()) throw_runtime(failure_);
  ranks_.push_back(rank);
  return requests_.emplace_back(MPI_REQUEST_NULL);
}

bool MpiMessages::arrived(const char* what) {
  int all = 0;
  check_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all, MPI_STATUSES_IGNORE), what);
  if (all) {
    requests_.clear();
    ranks_.clear();
  }
  return all != 0;
}

void MpiMessages::wait(const char* what) {
  Clock::time_point looked = Clock::now();
  Clock::duration waited{};
  bool once_more = true;
  for (std::int64_t round = 0; !arrived(what); ++round) {
    if (cancelled_) fail(concat(what, " was given up"));
    // The processor belongs to those who compute: ranks may share it, and in overlapped communication this rank does.
    if (round < 64) {
      sched_yield();
      continue;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(round < 1024 ? 10 : 200));
    const Clock::time_point now = Clock::now();
    if (now - looked < between_looks) continue;
    waited += std::min<Clock::duration>(now - looked, 2 * between_looks);  // not while this process was stopped itself
    looked = now;
    answer_questions();
    const double limit = timeout_;
    const bool late = limit > 0 && std::chrono::duration<double>(waited).count() > limit;
    const std::set<int> silent = late ? silent_ranks() : std::set<int>();
    // What a rank sent before it ended, or while it was asked, may still be on its way: once more after the look.
    const int ended = peers_.ended();
    if ((!late && ended < 0) || arrived(what)) continue;
    if (ended >= 0) {
      const std::string gone = peers_.describe(ended), missed = describe(missing());
      fail(concat(gone, " has ended; this rank waited for ", missed == gone ? "it" : missed, " in ", what));
    }
    if (!silent.empty()) fail(concat("no answer from ", describe(silent), " in ", what, " for ", limit, " s"));
    // Nobody hangs now. Who did may have come back; or the ranks wait for different things.
    if (!once_more) fail(concat("all ranks wait, this one for ", describe(missing()), " in ", what));
    once_more = false;
    waited = {};
  }
}

std::set<int> MpiMessages::missing() const {
  std::set<int> ranks;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    int done = 0;
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    if (MPI_Request_get_status(requests_[i], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) ranks.insert(ranks_[i]);
  }
  return ranks;
}

std::string MpiMessages::describe(const std::set<int>& ranks) const {
  if (ranks.empty() || ranks.count(everybody) > 0) return "the others";
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + peers_.describe(rank);
  return text;
}

std::set<int> MpiMessages::silent_ranks() {
  while (take_signal(answer_tag) >= 0) {  // to an earlier question
  }
  std::set<int> silent;
  for (int rank = 0; rank < peers_.size(); ++rank) {
    if (rank == peers_.rank()) continue;
    silent.insert(rank);
    signal(rank, question_tag);
  }
  // As long as this, even when all have answered: others whose time is up as well ask meanwhile.
  const Clock::time_point deadline = Clock::now() + answers_within;
  while (Clock::now() < deadline) {
    answer_questions();
    for (int rank; (rank = take_signal(answer_tag)) >= 0;) silent.erase(rank);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return silent;
}

void MpiMessages::answer_questions() {
  for (int rank; (rank = take_signal(question_tag)) >= 0;) signal(rank, answer_tag);
}

void MpiMessages::signal(int rank, int tag) {
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Isend(nullptr, 0, MPI_BYTE, rank, tag, comm_, &request) == MPI_SUCCESS) MPI_Request_free(&request);
}

int MpiMessages::take_signal(int tag) {
  int there = 0;
  MPI_Status status;
  if (MPI_Iprobe(MPI_ANY_SOURCE, tag, comm_, &there, &status) != MPI_SUCCESS || !there) return -1;
  const int rank = status.MPI_SOURCE;
  return MPI_Recv(nullptr, 0, MPI_BYTE, rank, tag, comm_, MPI_STATUS_IGNORE) == MPI_SUCCESS ? rank : -1;
}

void MpiMessages::fail(const std::string& message) {
  failure_ = message;
  // Nothing may be written any more into memory that the caller is about to give up.
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL || ranks_[i] == everybody)
      continue;  // a barrier cannot be cancelled, and writes nothing
    MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
  }
  requests_.clear();
  ranks_.clear();
  throw_runtime(message);
}

}  // namespace greyhound
