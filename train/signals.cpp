#include <greyhound/train/signals.h>

#include <csignal>
#include <cstddef>

namespace greyhound {

namespace {

volatile std::sig_atomic_t received = 0;
constexpr int stop_signals[] = {SIGINT, SIGTERM, SIGHUP};
constexpr std::size_t signal_count = 3;
struct sigaction earlier[signal_count], earlier_pipe;

// nohup ignores SIGHUP, and means it.
bool is_kept(std::size_t i) { return stop_signals[i] == SIGHUP && earlier[i].sa_handler == SIG_IGN; }

void handle(int signal, void (*handler)(int), struct sigaction* before) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, before);
}

// The second signal, whichever it is, finds the default action, which ends a program that hangs in a step.
extern "C" void remember_signal(int signal) {
  received = signal;
  for (std::size_t i = 0; i < signal_count; ++i) {
    if (!is_kept(i)) handle(stop_signals[i], SIG_DFL, nullptr);
  }
}

// Nobody reads the log any more; what is written to it until the end fails without harm.
extern "C" void remember_pipe(int signal) {
  if (received == 0) received = signal;
}

}  // namespace

StopRequest::StopRequest() {
  received = 0;
  for (std::size_t i = 0; i < signal_count; ++i) sigaction(stop_signals[i], nullptr, &earlier[i]);
  for (std::size_t i = 0; i < signal_count; ++i) {
    if (!is_kept(i)) handle(stop_signals[i], remember_signal, nullptr);
  }
  handle(SIGPIPE, remember_pipe, &earlier_pipe);
}

StopRequest::~StopRequest() {
  for (std::size_t i = 0; i < signal_count; ++i) sigaction(stop_signals[i], &earlier[i], nullptr);
  sigaction(SIGPIPE, &earlier_pipe, nullptr);
}

bool StopRequest::requested() const { return received != 0; }

std::string StopRequest::signal_name() const {
  switch (received) {
    case 0: return "";
    case SIGINT: return "Ctrl-C";
    case SIGHUP: return "SIGHUP";
    case SIGPIPE: return "SIGPIPE";
    default: return "SIGTERM";
  }
}

}  // namespace greyhound
