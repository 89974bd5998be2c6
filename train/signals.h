// Ctrl-C and SIGTERM as a question that the training loop asks between steps.
#pragma once

#include <string>

namespace greyhound {

// While one exists, the first SIGINT or SIGTERM is remembered and the program goes on; the second ends it at once.
// The earlier handlers come back when it goes out of scope. At most one may exist.
class StopRequest {
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  bool requested() const;
  std::string signal_name() const;  // "Ctrl-C" or "SIGTERM"; empty before a request
};

}  // namespace greyhound
