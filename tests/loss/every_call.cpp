// Every operation on shapes that a memory or race checker gets through in seconds.
#include <tests/loss/every_call.h>

using namespace greyhound;
using namespace greyhound::test;

TEST_CASE_ON_EACH_BACKEND("losses: every operation on small shapes, twice with the same bits") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const std::int64_t vocab : {1, 33, 1031, 5003, 16392}) {
      for (const bool options : {false, true}) {
        const LinearProblem p{vocab == 1031 ? 9 : 5, 24, vocab, dtype, vocab + 7, true};
        CAPTURE(vocab);
        CAPTURE(options);
        EveryCall call(p, options);
        call.enqueue();
        const std::vector<Buffer> first = copies(call.results());
        const LossSumsData sums = call.sums();
        CHECK(sums.nonfinite_rows == 0);
        CHECK(sums.n_valid == 4 * p.rows - 3 * (p.rows / 5));  // the caller's own loss counts every row
        call.enqueue();
        CHECK(differing(call.results(), first) == 0);
        const LossSumsData again = call.sums();
        CHECK(std::memcmp(&again, &sums, sizeof sums) == 0);
        if (BackendScope::device() == nullptr) continue;
        const std::vector<Buffer> got = copies(call.results());  // read while the device is the current backend
        const BackendScope host;
        EveryCall on_cpu(p, options);
        on_cpu.enqueue();
        check_alike(dtype, got, copies(on_cpu.results()));
      }
    }
  }
}
