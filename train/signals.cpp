#include <greyhound/train/signals.h>

#include <csignal>

namespace greyhound {

namespace {

volatile std::sig_atomic_t received = 0;
struct sigaction earlier_interrupt, earlier_terminate, earlier_hangup;

extern "C" void remember_signal(int signal) { received = signal; }

}  // namespace

StopRequest::StopRequest() {
  received = 0;
  struct sigaction action {};
  action.sa_handler = remember_signal;
  sigemptyset(&action.sa_mask);
  // SA_RESETHAND: a second signal finds the default action, which ends a program that hangs in a step.
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  sigaction(SIGINT, &action, &earlier_interrupt);
  sigaction(SIGTERM, &action, &earlier_terminate);
  sigaction(SIGHUP, nullptr, &earlier_hangup);
  if (earlier_hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

StopRequest::~StopRequest() {
  sigaction(SIGINT, &earlier_interrupt, nullptr);
  sigaction(SIGTERM, &earlier_terminate, nullptr);
  sigaction(SIGHUP, &earlier_hangup, nullptr);
}

bool StopRequest::requested() const { return received != 0; }

std::string StopRequest::signal_name() const {
  switch (received) {
    case 0: return "";
    case SIGINT: return "Ctrl-C";
    case SIGHUP: return "SIGHUP";
    default: return "SIGTERM";
  }
}

}  // namespace greyhound
