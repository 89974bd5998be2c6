#include <greyhound/kernels/cuda/fastest.h>

#include <greyhound/core/cuda/cuda_check.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace greyhound::cuda {

namespace {

constexpr float worth_another_look = 1.15f;  // of the first round's best time
constexpr std::size_t finalists = 24;
constexpr int rounds = 5;

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
  std::vector<float> milliseconds;

  float median() const {
    std::vector<float> sorted = milliseconds;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    return *middle;
  }
};

// Nothing waits between the candidates of a round: an idle device would lower its clock, and hide launches that are
// slow.
class Race {
 public:
  Race(cudaStream_t stream, const std::function<bool(int)>& enqueue) : stream_(stream), enqueue_(enqueue) {}

  // One measured run of each; drops those that do not start.
  void run_round(std::vector<Candidate>& candidates, bool warm_up) const {
    std::vector<Candidate> started;
    for (Candidate& candidate : candidates) {
      if (warm_up && !enqueue_(candidate.index)) continue;
      check(cudaEventRecord(candidate.before, stream_), "cudaEventRecord");
      if (!enqueue_(candidate.index)) continue;
      check(cudaEventRecord(candidate.after, stream_), "cudaEventRecord");
      started.push_back(std::move(candidate));
    }
    candidates = std::move(started);
    check(cudaStreamSynchronize(stream_), "timing");
    for (Candidate& candidate : candidates) {
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, candidate.before, candidate.after), "cudaEventElapsedTime");
      candidate.milliseconds.push_back(milliseconds);
    }
  }

 private:
  cudaStream_t stream_;
  const std::function<bool(int)>& enqueue_;
};

bool faster(const Candidate& one, const Candidate& other) { return one.median() < other.median(); }

}  // namespace

int fastest(cudaStream_t stream, int candidates, const std::function<bool(int)>& enqueue) {
  std::vector<Candidate> field;
  for (int i = 0; i < candidates; ++i) field.push_back(Candidate{i, {}, {}, {}});
  const Race race(stream, enqueue);
  race.run_round(field, true);
  if (field.empty()) return -1;

  // Stable, so that of equally fast ones the first stays the first.
  std::stable_sort(field.begin(), field.end(), faster);
  const float limit = worth_another_look * field.front().median();
  while (field.size() > finalists || field.back().median() > limit) field.pop_back();
  if (field.size() == 1) return field.front().index;
  for (Candidate& candidate : field) candidate.milliseconds.clear();
  for (int round = 0; round < rounds; ++round) race.run_round(field, false);
  if (field.empty()) return -1;
  const auto best = std::min_element(field.begin(), field.end(), [](const Candidate& one, const Candidate& other) {
    const float a = one.median(), b = other.median();
    return a < b || (a == b && one.index < other.index);
  });
  return best->index;
}

}  // namespace greyhound::cuda
