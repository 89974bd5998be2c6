#include <greyhound/train/schedule.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace greyhound {

double learning_rate(const Config::Schedule& schedule, double peak, std::int64_t step, std::int64_t max_steps) {
  if (step < schedule.warmup_steps) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
  }
  if (schedule.kind == ScheduleKind::constant) return peak;

  const std::int64_t first = std::max<std::int64_t>(schedule.warmup_steps - 1, 0);  // the step at the peak
  const std::int64_t last = max_steps - 1;
  if (step <= first || last <= first) return peak;
  const double progress = std::min(1.0, static_cast<double>(step - first) / static_cast<double>(last - first));
  const double height =
      schedule.kind == ScheduleKind::cosine ? 0.5 * (1 + std::cos(std::numbers::pi * progress)) : 1 - progress;
  const double floor = schedule.final_lr_fraction;
  return peak * (floor + (1 - floor) * height);
}

}  // namespace greyhound
