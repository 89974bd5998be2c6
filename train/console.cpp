#include <greyhound/core/error.h>
#include <greyhound/train/console.h>
#include <greyhound/train/one_line.h>

#include <spdlog/sinks/stdout_sinks.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace greyhound {

namespace {

int console_rank = 0, console_ranks = 1;

// Sends what is below a warning to stdout, the rest to stderr.
class PlainSink final : public spdlog::sinks::sink {
 public:
  PlainSink() {
    out_.set_pattern("%v");
    error_.set_pattern("greyhound: %l: %v");
  }
  void log(const spdlog::details::log_msg& message) override {
    if (message.level < spdlog::level::warn) {
      out_.log(message);
      out_.flush();
    } else {
      error_.log(message);
    }
  }
  void flush() override { out_.flush(); }
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}

 private:
  spdlog::sinks::stdout_sink_mt out_;
  spdlog::sinks::stderr_sink_mt error_;
};

}  // namespace

void set_up_console(int rank, int ranks) {
  console_rank = rank;
  console_ranks = ranks;
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("greyhound", std::make_shared<PlainSink>()));
  if (rank != 0) spdlog::set_level(spdlog::level::off);
}

void require_output_written() {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  const int problem = errno;
  if (flushed && std::ferror(stdout) == 0) return;
  throw_runtime("standard output cannot be written", problem != 0 ? std::string(": ") + std::strerror(problem) : "");
}

void print_error(const std::string& message) {
  const std::string rank = console_ranks == 1 ? "" : " (rank " + std::to_string(console_rank) + ")";
  std::fprintf(stderr, "greyhound: error%s: %s\n", rank.c_str(), one_line(message).c_str());
}

void print_common_error(const std::string& message) {
  if (console_rank == 0) std::fprintf(stderr, "greyhound: error: %s\n", one_line(message).c_str());
}

}  // namespace greyhound
