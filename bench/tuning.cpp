#include "tuning.h"

#include <greyhound/core/error.h>
#include <greyhound/kernels/matmul_choices.h>

#include <chrono>
#include <fstream>
#include <sstream>

namespace greyhound::bench {

namespace {

// A comment to load_matmul_choices.
const std::string done_mark = "# tuned: ";

}  // namespace

Tuning::Tuning(const Context& context, const std::string& path) : context_(context), path_(path) {
  if (!path_.empty()) load();
}

void Tuning::load() {
  std::ifstream file(path_);
  if (!file) return;
  std::ostringstream text;
  text << file.rdbuf();
  // Choices of another device or library do not apply: then everything is tuned again.
  if (load_matmul_choices(context_, text.str()) == 0) return;
  std::istringstream lines(text.str());
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(done_mark, 0) == 0) done_.insert(line.substr(done_mark.size()));
  }
}

void Tuning::once(const std::string& what, const Work& tune) {
  if (!done_.insert(what).second) return;
  const auto begin = std::chrono::steady_clock::now();
  tune();
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!path_.empty()) save();
}

void Tuning::save() const {
  std::ofstream file(path_);
  for (const std::string& what : done_) file << done_mark << what << '\n';
  file << save_matmul_choices(context_);
  if (!file.flush()) throw_runtime(path_, ": cannot be written");
}

}  // namespace greyhound::bench
