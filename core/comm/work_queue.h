// A thread that does what it is given, in order. Internal.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace greyhound {

class WorkQueue {
 public:
  WorkQueue() = default;
  WorkQueue(const WorkQueue&) = delete;
  ~WorkQueue();  // waits for the work at hand and leaves the rest undone

  // The first call starts the thread.
  void add(std::function<void()> work);
  // Waits until everything that was added is done. When some of it threw, what came after it was left out, and the
  // exception is thrown here.
  void join();
  bool idle() const;

 private:
  void run();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool busy_ = false, ending_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace greyhound
