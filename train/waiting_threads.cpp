#include <greyhound/train/waiting_threads.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace greyhound {

void let_waiting_threads_sleep(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  if (setenv("OMP_WAIT_POLICY", "passive", 1) != 0) return;
  // By its path, since a process is named after what was started. They come back only where there is no /proc: then
  // threads spin, and all is well otherwise.
  std::error_code none;
  execv(std::filesystem::read_symlink("/proc/self/exe", none).c_str(), argv);
  execv("/proc/self/exe", argv);  // the file is there no more
}

}  // namespace greyhound
