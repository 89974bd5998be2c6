// The ranks that mpirun started, for tests that all of them run: what is checked must be known to every rank, since one
// that leaves a test alone would be waited for.
#pragma once

#include <doctest/doctest.h>
#include <greyhound/core/comm/launch.h>
#include <tests/backend.h>

#include <cstdio>
#include <memory>

namespace greyhound::testing {

inline Communicator& ranks() {
  static const std::unique_ptr<Communicator> communicator = make_host_communicator();
  return *communicator;
}

// NCCL over all ranks; nullptr where there are not enough GPUs, which all ranks find together.
struct Gpus {
  std::unique_ptr<Communicator> communicator;
  Context context = Context::cpu();

  Gpus() {
    std::int64_t enough = cuda_device_count() > local_rank(ranks()).rank ? 1 : 0;
    enough = -enough;
    ranks().all_reduce(Context::cpu(), tensor(&enough, DType::int64, {1}), ReduceOp::max);
    if (enough == 0) return;
    context = Context::cuda(choose_gpu(ranks()));
    communicator = make_device_communicator(make_host_communicator(), context);
    communicator->set_timeout(60);
  }
};

inline Gpus* gpus() {
  static Gpus all;
  if (!all.communicator && ranks().is_root()) std::printf("skipped: no CUDA device for each of the ranks\n");
  return all.communicator ? &all : nullptr;
}

// The ranks on the backend under test.
inline Communicator& training_ranks() {
  return test::BackendScope::device() != nullptr ? *gpus()->communicator : ranks();
}

}  // namespace greyhound::testing

// A test case for the CPU, and the same " on CUDA" in the suite "cuda", with a GPU for each rank.
#define GREYHOUND_RANKS_TEST_CASE(function, name)                                   \
  static void function();                                                           \
  TEST_CASE(name) { function(); }                                                   \
  TEST_CASE(name " on CUDA" * doctest::test_suite("cuda")) {                        \
    if (greyhound::testing::gpus() == nullptr) return;                              \
    const greyhound::test::BackendScope scope(greyhound::testing::gpus()->context); \
    function();                                                                     \
  }                                                                                 \
  static void function()
#define RANKS_TEST_CASE(name) GREYHOUND_RANKS_TEST_CASE(DOCTEST_ANONYMOUS(ranks_on_both_), name)
