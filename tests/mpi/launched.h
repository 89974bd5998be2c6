// Runs the program under mpirun, as a user would, for tests of what several processes do together.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <greyhound/core/device.h>
#include <signal.h>
#include <sys/wait.h>
#include <tests/train/test_files.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace greyhound::testing {

inline bool have_two_gpus() {
  if (cuda_device_count() >= 2) return true;
  MESSAGE("skipped: no CUDA device for each of two ranks");
  return false;
}

struct Launch {
  int ranks = 1;
  std::vector<std::string> arguments;  // of greyhound
  std::string before = "true";         // shell commands of every rank, which knows its $RANK
};

class LaunchedProgram {
 public:
  LaunchedProgram(const TemporaryFolder& folder, const Launch& launch) : folder_(folder.path()) {
    std::string script = "RANK=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\necho $$ >'" + folder_ + "/pid'.$RANK\n" +
                         launch.before + "\nexec '" + GREYHOUND_PROGRAM + "'";
    for (const std::string& argument : launch.arguments) script += " \"" + argument + "\"";  // may hold $RANK
    write_file(folder_ + "/rank.sh", script + "\n");

    std::vector<std::string> words = {GREYHOUND_MPIEXEC, GREYHOUND_MPIEXEC_NUMPROC, std::to_string(launch.ranks),
                                      "/bin/sh", folder_ + "/rank.sh"};
    process_ = fork();
    if (process_ != 0) return;
    redirect(folder_ + "/stdout", STDOUT_FILENO);
    redirect(folder_ + "/stderr", STDERR_FILENO);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    execvp(argv[0], argv.data());
    _exit(127);
  }

  int pid_of(int rank) const { return std::atoi(read_file(folder_ + "/pid." + std::to_string(rank)).c_str()); }

  // What mpirun exits with; 128 + signal when it had to be killed because it did not end within `seconds`.
  int wait(double seconds = 60) const {
    int status = 0;
    const bool ended = until([&] { return waitpid(process_, &status, WNOHANG) == process_; }, seconds);
    if (!ended) {
      kill(process_, SIGKILL);
      waitpid(process_, &status, 0);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  std::string out() const { return read_file(folder_ + "/stdout"); }
  std::string error() const { return read_file(folder_ + "/stderr"); }

  // Polls until `condition` holds; false when it did not within `seconds`.
  static bool until(const std::function<bool()>& condition, double seconds) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return true;
  }

 private:
  static void redirect(const std::string& path, int descriptor) {
    const int file = open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    dup2(file, descriptor);
  }

  std::string folder_;
  pid_t process_ = -1;
};

}  // namespace greyhound::testing
