// The program as a child process, and what it leaves in a run's folder.
#pragma once

#include "test_files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <functional>
#include <sstream>

namespace greyhound::testing {

using Arguments = std::vector<std::string>;

struct Outcome {
  int exit_code;
  std::string out, error;
};

// A child process whose output goes to files.
class Program {
 public:
  // `prepare` runs in the child before the program starts.
  Program(const TemporaryFolder& folder, const Arguments& arguments, const Arguments& environment = {},
          const std::function<void()>& prepare = {})
      : out_(folder / "stdout"), error_(folder / "stderr") {
    process_ = fork();
    if (process_ != 0) return;
    redirect(out_, STDOUT_FILENO);
    redirect(error_, STDERR_FILENO);
    if (prepare) prepare();
    for (const std::string& variable : environment) putenv(const_cast<char*>(variable.c_str()));
    std::vector<char*> argv = {const_cast<char*>(GREYHOUND_PROGRAM)};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    execv(GREYHOUND_PROGRAM, argv.data());
    _exit(127);
  }

  void send(int signal) const { kill(process_, signal); }
  // As ps and pkill know it.
  std::string name() const { return read_file("/proc/" + std::to_string(process_) + "/comm"); }

  // Until it ends; wait() still has its exit code.
  bool runs() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
  }

  Outcome wait() const {
    int status = 0;
    waitpid(process_, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(out_), read_file(error_)};
  }

 private:
  static void redirect(const std::string& path, int descriptor) {
    const int file = open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    dup2(file, descriptor);
  }

  std::string out_, error_;
  pid_t process_;
};

// To `prepare` a program with: the largest size of a file stands in for a full disk. Logs fit, weights do not.
inline void limit_files() {
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{16000, 16000};
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

inline Outcome run(const TemporaryFolder& folder, const Arguments& arguments, const Arguments& environment = {}) {
  return Program(folder, arguments, environment).wait();
}

inline std::vector<nlohmann::json> metrics_of(const std::string& run_dir) {
  std::istringstream text(read_file(run_dir + "/metrics.jsonl"));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

// The columns of metrics.jsonl that must not depend on time.
inline std::string curve_of(const std::string& run_dir) {
  std::string curve;
  for (nlohmann::json line : metrics_of(run_dir)) {
    line.erase("step_ms");
    line.erase("tokens_per_second");
    line.erase("mfu");
    line.erase("comm_ms");
    curve += line.dump() + "\n";
  }
  return curve;
}

}  // namespace greyhound::testing
