// Which backend a test runs on: the body of one test serves the CPU and, in the suite "cuda", a GPU.
#pragma once

#include <doctest/doctest.h>
#include <greyhound/core/context.h>

#include <cstdlib>
#include <string>

namespace greyhound::test {

// GREYHOUND_TEST_CPU_AS_DEVICE=1: the CPU stands in for the GPU, with memory of its own as a GPU has. That shows
// mistakes of the tests themselves on a machine without one.
inline bool cpu_as_device() {
  const char* value = std::getenv("GREYHOUND_TEST_CPU_AS_DEVICE");
  return value != nullptr && std::string(value) == "1";
}

// Whether a test of the suite "cuda" can run; says so where it cannot.
inline bool have_device() {
  if (cpu_as_device() || cuda_device_count() > 0) return true;
  MESSAGE("skipped: no CUDA device: " << cuda_unavailable_reason());
  return false;
}

inline Context device_context(void* stream = nullptr) {
  return cpu_as_device() ? Context::cpu(2) : Context::cuda(0, stream);
}

// While it lives, tests of this host thread run on `context`, with Buffers in its device's memory; without a context,
// on the CPU in host memory, as they do outside every scope.
class BackendScope {
 public:
  BackendScope() : BackendScope(Context::cpu(), false) {}
  explicit BackendScope(const Context& context) : BackendScope(context, true) {}
  ~BackendScope() { current() = before_; }
  BackendScope(const BackendScope&) = delete;
  BackendScope& operator=(const BackendScope&) = delete;

  static const Context* device() { return current(); }  // nullptr: the CPU

 private:
  BackendScope(const Context& context, bool is_device) : context_(context), before_(current()) {
    current() = is_device ? &context_ : nullptr;
  }
  static const Context*& current() {
    thread_local const Context* context = nullptr;
    return context;
  }

  Context context_;
  const Context* before_;
};

// The backend under test; on the CPU with so many threads.
inline Context test_context(int threads = 0) {
  return BackendScope::device() != nullptr ? *BackendScope::device() : Context::cpu(threads);
}

inline Device test_device() {
  return BackendScope::device() != nullptr ? BackendScope::device()->device() : Device::cpu();
}

}  // namespace greyhound::test

// A test case for the CPU, and the same " on CUDA" in the suite "cuda". `suite` is that of the CPU's.
#define GREYHOUND_TEST_ON_BOTH(function, name, suite)                             \
  static void function();                                                         \
  TEST_CASE(name* doctest::test_suite(suite)) { function(); }                     \
  TEST_CASE(name " on CUDA" * doctest::test_suite("cuda")) {                      \
    if (!greyhound::test::have_device()) return;                                  \
    const greyhound::test::BackendScope scope(greyhound::test::device_context()); \
    function();                                                                   \
  }                                                                               \
  static void function()
#define TEST_CASE_ON_EACH_BACKEND(name) GREYHOUND_TEST_ON_BOTH(DOCTEST_ANONYMOUS(both_backends_), name, "")
#define SLOW_TEST_CASE_ON_EACH_BACKEND(name) GREYHOUND_TEST_ON_BOTH(DOCTEST_ANONYMOUS(both_backends_), name, "slow")
