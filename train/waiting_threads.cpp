#include <greyhound/train/waiting_threads.h>

#include <unistd.h>

#include <cstdlib>

namespace greyhound {

void let_waiting_threads_sleep(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  if (setenv("OMP_WAIT_POLICY", "passive", 1) != 0) return;
  execv("/proc/self/exe",
        argv);  // comes back only where there is no /proc: then threads spin, and all is well otherwise
}

}  // namespace greyhound
