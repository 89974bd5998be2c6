#include <greyhound/train/metrics.h>

#include <fcntl.h>
#include <greyhound/core/error.h>
#include <greyhound/train/file_io.h>
#include <greyhound/train/mapped_file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

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
  if (metrics.mfu) line["mfu"] = *metrics.mfu;
  line["skipped_steps"] = metrics.skipped_steps;
  line["ranks"] = metrics.ranks;
  return line.dump();
}

namespace {

// A line as to_json() begins it; -1 for anything else, such as the part of a line that a crash left.
std::int64_t step_of(std::string_view line) {
  constexpr std::string_view start = "{\"step\":";
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);  // an editor's
  if (line.substr(0, start.size()) != start || line.back() != '}') return -1;
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(line.data() + start.size(), line.data() + line.size(), step);
  return error == std::errc() && *end == ',' ? step : -1;
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, std::int64_t after_step) : path_(path) {
  open(after_step > 0 ? O_RDWR : O_RDWR | O_TRUNC);
  try {
    if (after_step > 0) cut_after(after_step);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

MetricsFile::~MetricsFile() { ::close(descriptor_); }

void MetricsFile::open(int flags) {
  const int opened = ::open(path_.c_str(), flags | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (opened < 0) throw_runtime(path_, ": cannot be written: ", std::strerror(errno));
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = opened;
}

void MetricsFile::cut_after(std::int64_t step) {
  const MappedFile file(path_);
  std::string_view rest = file.text();
  std::size_t kept = 0;
  bool unknown = false;
  for (std::size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
    const std::int64_t found = step_of(rest.substr(0, end));
    unknown = found <= last_step_;
    if (unknown || found > step) break;
    last_step_ = found;
    kept += end + 1;
    rest.remove_prefix(end + 1);
  }
  if (kept == file.size()) return;
  // Lines that no run of ours wrote are not for us to lose.
  if (unknown) write_atomically(path_ + ".old", std::string(file.text()));
  if (::ftruncate(descriptor_, static_cast<off_t>(kept)) != 0) {
    throw_runtime(path_, ": cannot be cut after step ", last_step_, ": ", std::strerror(errno));
  }
}

void MetricsFile::write(const StepMetrics& metrics) {
  pending_ += to_json(metrics) + "\n";
  flush();
}

void MetricsFile::flush() {
  if (pending_.empty()) return;
  struct stat opened {
  }, named{};
  const bool removed = ::stat(path_.c_str(), &named) != 0 || ::fstat(descriptor_, &opened) != 0 ||
                       named.st_ino != opened.st_ino || named.st_dev != opened.st_dev;
  if (removed) open(O_RDWR);
  if (::fstat(descriptor_, &opened) != 0) throw_runtime(path_, ": cannot be written: ", std::strerror(errno));
  std::size_t done = 0;
  while (done < pending_.size()) {
    const ssize_t written = ::write(descriptor_, pending_.data() + done, pending_.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int problem = errno;
      // No part of a line stays. When even that fails, the next start cuts it off.
      if (done > 0 && ::ftruncate(descriptor_, opened.st_size) != 0) pending_.erase(0, done);
      throw_runtime(path_, ": cannot be written: ", std::strerror(problem));
    }
    done += static_cast<std::size_t>(written);
  }
  pending_.clear();
}

void MetricsFile::sync() const { ::fsync(descriptor_); }

}  // namespace greyhound
