#include <greyhound/train/metrics.h>

#include <greyhound/core/error.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>

namespace greyhound {

std::string to_json(const StepMetrics& metrics) {
  nlohmann::ordered_json line;  // in the order written here; NaN and infinity are dumped as null
  line["step"] = metrics.step;
  line["tokens"] = metrics.tokens;
  line["epoch"] = metrics.epoch;
  line["loss"] = metrics.loss;
  if (metrics.z_loss) line["z_loss"] = *metrics.z_loss;
  if (metrics.val_loss) line["val_loss"] = *metrics.val_loss;
  line["lr"] = metrics.lr;
  line["grad_norm"] = metrics.grad_norm;
  line["tokens_per_second"] = metrics.tokens_per_second;
  line["step_ms"] = metrics.step_ms;
  line["comm_ms"] = metrics.comm_ms;
  line["skipped_steps"] = metrics.skipped_steps;
  line["ranks"] = metrics.ranks;
  return line.dump();
}

MetricsFile::MetricsFile(const std::string& path) : path_(path), file_(path, std::ios::trunc) {
  if (!file_) throw_runtime(path_, ": cannot be written: ", std::strerror(errno));
}

void MetricsFile::write(const StepMetrics& metrics) {
  file_ << to_json(metrics) + "\n" << std::flush;
  if (!file_) throw_runtime(path_, ": cannot be written: ", std::strerror(errno));
}

}  // namespace greyhound
