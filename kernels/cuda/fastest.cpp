#include <greyhound/kernels/cuda/fastest.h>

#include <greyhound/core/cuda/cuda_check.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace greyhound::cuda {

namespace {

constexpr float worth_another_look = 1.25f;  // of the best time of a single run
constexpr std::size_t finalists = 24;
constexpr int rounds = 3;

// Milliseconds: of a turn, and of what heats the device up before the first. Short runs are repeated at most so often.
constexpr float turn_length = 10, heating = 60;
constexpr int most_runs = 200;

int runs_in(float milliseconds, float one_run) {
  return std::clamp(static_cast<int>(milliseconds / std::max(one_run, 1e-3f)), 1, most_runs);
}

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() {
    if (event_ != nullptr) (void)cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

struct Candidate {
  int index;
  Event before, after;
  int runs = 1;                     // of a turn
  float single = 0;                 // milliseconds of a run alone
  std::vector<float> milliseconds;  // of a run, in each turn

  float median() const {
    std::vector<float> sorted = milliseconds;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    return *middle;
  }
};

// Nothing waits between the candidates of a round: an idle device would change its clock, and hide launches that are
// slow.
class Race {
 public:
  Race(cudaStream_t stream, const std::function<bool(int)>& enqueue) : stream_(stream), enqueue_(enqueue) {}

  // A turn of each candidate; drops those that do not start.
  void run_round(std::vector<Candidate>& candidates) const {
    std::vector<Candidate> started;
    for (Candidate& candidate : candidates) {
      check(cudaEventRecord(candidate.before, stream_), "cudaEventRecord");
      if (!repeat(candidate.index, candidate.runs)) continue;
      check(cudaEventRecord(candidate.after, stream_), "cudaEventRecord");
      started.push_back(std::move(candidate));
    }
    candidates = std::move(started);
    check(cudaStreamSynchronize(stream_), "timing");
    for (Candidate& candidate : candidates) {
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, candidate.before, candidate.after), "cudaEventElapsedTime");
      candidate.milliseconds.push_back(milliseconds / static_cast<float>(candidate.runs));
    }
  }
  bool repeat(int index, int runs) const {
    for (int run = 0; run < runs; ++run) {
      if (!enqueue_(index)) return false;
    }
    return true;
  }

 private:
  cudaStream_t stream_;
  const std::function<bool(int)>& enqueue_;
};

}  // namespace

int fastest(cudaStream_t stream, int candidates, const std::function<bool(int)>& enqueue) {
  const Race race(stream, enqueue);
  std::vector<Candidate> field;
  for (int i = 0; i < candidates; ++i) field.push_back(Candidate{i, {}, {}, 1, 0, {}});
  race.run_round(field);  // what only a first run does, such as loading its code
  race.run_round(field);
  if (field.empty()) return -1;
  for (Candidate& candidate : field) {
    candidate.single = candidate.milliseconds.back();
    candidate.milliseconds.clear();
  }

  // Stable, so that of equally fast ones the first stays the first.
  const auto shorter = [](const Candidate& one, const Candidate& other) { return one.single < other.single; };
  std::stable_sort(field.begin(), field.end(), shorter);
  const float limit = worth_another_look * field.front().single;
  while (field.size() > finalists || field.back().single > limit) field.pop_back();
  if (field.size() == 1) return field.front().index;
  for (Candidate& candidate : field) candidate.runs = runs_in(turn_length, candidate.single);
  race.repeat(field.front().index, runs_in(heating, field.front().single));
  for (int round = 0; round < rounds; ++round) race.run_round(field);
  if (field.empty()) return -1;
  const auto best = std::min_element(field.begin(), field.end(), [](const Candidate& one, const Candidate& other) {
    const float a = one.median(), b = other.median();
    return a < b || (a == b && one.index < other.index);
  });
  return best->index;
}

}  // namespace greyhound::cuda
