// The products' algorithms, tuned once and kept in a file from run to run: timing all candidates of large products
// takes longer than everything else that a benchmark does.
#pragma once

#include "timing.h"

#include <set>
#include <string>

namespace greyhound::bench {

class Tuning {
 public:
  // Loads the choices in the file, when there is one for this device and library. An empty path: nothing is kept.
  Tuning(const Context& context, const std::string& path);

  // Runs `tune`, and saves what it chose, unless the file or this run has done so for `what`.
  void once(const std::string& what, const Work& tune);

  double seconds() const { return seconds_; }  // spent in tuning

 private:
  void load();
  void save() const;

  const Context& context_;
  std::string path_;
  std::set<std::string> done_;
  double seconds_ = 0;
};

}  // namespace greyhound::bench
