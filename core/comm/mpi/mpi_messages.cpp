#include <greyhound/core/comm/mpi/mpi_messages.h>

#include <greyhound/core/error.h>

#include <sched.h>

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
  add(MPI_REQUEST_NULL);
  ranks_.back() = from;
  check_mpi(MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE, from, tag, comm_, &requests_.back()), "MPI_Irecv");
}

void MpiMessages::send(const void* data, std::int64_t bytes, int to, int tag) {
  if (bytes == 0) return;
  add(MPI_REQUEST_NULL);
  ranks_.back() = to;
  check_mpi(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, comm_, &requests_.back()), "MPI_Isend");
}

void MpiMessages::add(MPI_Request request) {
  if (!failure_.empty()) throw_runtime(failure_);
  requests_.push_back(request);
  ranks_.push_back(everybody);
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
  const Clock::time_point start = Clock::now();
  Clock::time_point next_look = start + between_looks;
  for (std::int64_t round = 0; !arrived(what); ++round) {
    if (cancelled_) fail(concat(what, " was given up"));
    // The processor belongs to those who compute: ranks may share it, and in overlapped communication this rank does.
    if (round < 64) {
      sched_yield();
      continue;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(round < 1024 ? 10 : 200));
    const Clock::time_point now = Clock::now();
    if (now < next_look) continue;
    next_look = now + between_looks;
    answer_questions();
    // What a rank sent before it ended may still be on its way: once more after the look.
    if (const int ended = peers_.ended(); ended >= 0 && !arrived(what)) {
      const std::string gone = peers_.describe(ended), missed = describe(missing());
      fail(concat(gone, " has ended; this rank waited for ", missed == gone ? "it" : missed, " in ", what));
    }
    if (requests_.empty()) return;
    const double waited = std::chrono::duration<double>(now - start).count();
    if (timeout_ > 0 && waited > timeout_) {
      const std::set<int> silent = silent_ranks();
      fail(concat("no answer from ", describe(silent.empty() ? missing() : silent), " in ", what, " for ",
                  timeout_.load(), " s"));
    }
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
  if (ranks.empty() || ranks.count(everybody) > 0) return "the other ranks";
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + peers_.describe(rank);
  return text;
}

std::set<int> MpiMessages::silent_ranks() {
  std::set<int> silent;
  for (int rank = 0; rank < peers_.size(); ++rank) {
    if (rank == peers_.rank() || timed_out_.count(rank) > 0) continue;
    silent.insert(rank);
    signal(rank, question_tag);
  }
  const Clock::time_point deadline = Clock::now() + answers_within;
  while (!silent.empty() && Clock::now() < deadline) {
    answer_questions();
    for (const int rank : timed_out_) silent.erase(rank);
    for (int rank; (rank = take_signal(answer_tag)) >= 0;) silent.erase(rank);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return silent;
}

void MpiMessages::answer_questions() {
  for (int rank; (rank = take_signal(question_tag)) >= 0;) {
    timed_out_.insert(rank);
    signal(rank, answer_tag);
  }
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
    if (requests_[i] == MPI_REQUEST_NULL || ranks_[i] == everybody) continue;  // collectives cannot be cancelled
    MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
  }
  requests_.clear();
  ranks_.clear();
  throw_runtime(message);
}

}  // namespace greyhound
