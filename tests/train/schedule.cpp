#include <doctest/doctest.h>
#include <greyhound/train/schedule.h>

#include <vector>

using namespace greyhound;

namespace {

constexpr double peak = 3e-3;

Config::Schedule make(ScheduleKind kind, std::int64_t warmup, double floor = 0.1) { return {kind, warmup, floor}; }

}  // namespace

TEST_CASE("schedule: table of first step, end of warm-up and last step") {
  struct Row {
    ScheduleKind kind;
    std::int64_t warmup, steps;
    double first, last;
  };
  const std::vector<Row> rows = {
      {ScheduleKind::cosine, 0, 100, peak, 0.1 * peak},   {ScheduleKind::linear, 0, 100, peak, 0.1 * peak},
      {ScheduleKind::constant, 0, 100, peak, peak},       {ScheduleKind::cosine, 10, 100, peak / 10, 0.1 * peak},
      {ScheduleKind::linear, 1, 100, peak, 0.1 * peak},   {ScheduleKind::constant, 10, 100, peak / 10, peak},
      {ScheduleKind::cosine, 100, 100, peak / 100, peak}, {ScheduleKind::linear, 5, 6, peak / 5, 0.1 * peak},
      {ScheduleKind::cosine, 0, 1, peak, peak},           {ScheduleKind::cosine, 0, 2, peak, 0.1 * peak},
  };
  for (const Row& row : rows) {
    CAPTURE(row.warmup);
    CAPTURE(row.steps);
    const Config::Schedule schedule = make(row.kind, row.warmup);
    const auto at = [&](std::int64_t step) { return learning_rate(schedule, peak, step, row.steps); };
    CHECK(at(0) > 0);
    CHECK(at(0) == doctest::Approx(row.first).epsilon(1e-12));
    if (row.warmup > 0) CHECK(at(row.warmup - 1) == peak);
    CHECK(at(row.steps - 1) == doctest::Approx(row.last).epsilon(1e-12));
    CHECK(at(row.steps + 1000) == doctest::Approx(at(row.steps - 1)).epsilon(1e-12));
    for (std::int64_t step = 1; step < row.steps; ++step) {
      CAPTURE(step);
      if (step < row.warmup) {
        CHECK(at(step) > at(step - 1));
      } else {
        CHECK(at(step) <= at(step - 1));
      }
    }
  }
}

TEST_CASE("schedule: half way down") {
  // 101 steps without warm-up: step 50 is the middle.
  CHECK(learning_rate(make(ScheduleKind::linear, 0), peak, 50, 101) == doctest::Approx(peak * 0.55));
  CHECK(learning_rate(make(ScheduleKind::cosine, 0), peak, 50, 101) == doctest::Approx(peak * 0.55));
  CHECK(learning_rate(make(ScheduleKind::cosine, 0, 0), peak, 25, 101) == doctest::Approx(peak * 0.853553391));
  CHECK(learning_rate(make(ScheduleKind::linear, 0, 0), peak, 100, 101) == 0);
}
