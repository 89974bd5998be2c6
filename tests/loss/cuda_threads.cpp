// Several host threads at once, each with a context and a stream of its own.
#include <tests/cuda_stream.h>
#include <tests/loss/every_call.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

using namespace greyhound;
using namespace greyhound::test;

TEST_CASE("losses: host threads at once give the bits of one alone on CUDA" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const std::vector<LinearProblem> problems{{130, 48, 5003, DType::fp32, 0, true},
                                            {130, 48, 5003, DType::bf16, 0, true},
                                            {130, 48, 5003, DType::fp16, 0, true},
                                            {40, 64, 33000, DType::bf16, 0, true}};
  std::vector<std::vector<Buffer>> alone;
  std::vector<LossSumsData> sums_alone;
  for (const LinearProblem& p : problems) {
    const Stream stream;
    const BackendScope scope(device_context(static_cast<cudaStream_t>(stream)));
    EveryCall call(p, true);
    call.enqueue();
    alone.push_back(copies(call.results()));
    sums_alone.push_back(call.sums());
  }
  // Two threads on each problem.
  std::atomic<std::int64_t> wrong{0}, finished{0};
  const auto work = [&](std::size_t which) {
    try {
      const Stream stream;
      const BackendScope scope(device_context(static_cast<cudaStream_t>(stream)));
      EveryCall call(problems[which], true);
      for (int run = 0; run < 8; ++run) {
        call.enqueue();
        wrong += differing(call.results(), alone[which]);
        const LossSumsData sums = call.sums();
        wrong += std::memcmp(&sums, &sums_alone[which], sizeof sums) != 0;
      }
      ++finished;
    } catch (const std::exception& error) {
      FAIL_CHECK(std::string(error.what()));
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 2 * problems.size(); ++i) threads.emplace_back(work, i % problems.size());
  for (std::thread& thread : threads) thread.join();
  CHECK(finished == static_cast<std::int64_t>(threads.size()));
  CHECK(wrong == 0);
}
