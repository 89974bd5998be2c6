// Ctrl-C, SIGTERM, SIGHUP and SIGPIPE as a question that the training loop asks between steps.
#pragma once

#include <string>

namespace greyhound {

// While one exists, the first SIGINT, SIGTERM or SIGHUP (unless it was ignored, as nohup does) is remembered and the
// program goes on; the second ends it at once. SIGPIPE, of a log that nobody reads any more, is remembered as well. The
// earlier handlers come back when it goes out of scope. At most one may exist.
class StopRequest {
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  bool requested() const;
  std::string signal_name() const;  // "Ctrl-C", "SIGTERM", ...; empty before a request
};

}  // namespace greyhound
