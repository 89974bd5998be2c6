// Every operation captured in a CUDA graph, and replayed with other data in the same memory.
#include <tests/cuda_graph.h>
#include <tests/loss/every_call.h>

#include <string>
#include <vector>

using namespace greyhound;
using namespace greyhound::test;

namespace {

Buffer some_targets(const LinearProblem& p, std::int64_t step) {
  Buffer index(DType::int64, Shape{p.rows});
  for (std::int64_t i = 0; i < p.rows; ++i) index.set_index(0, i, i % 7 == step ? -100 : (i * step * 31 + 2) % p.vocab);
  return index;
}

}  // namespace

TEST_CASE("losses captured in a CUDA graph, replayed with other targets and denominators" *
          doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const std::int64_t vocab : {1000, 20000}) {
      INFO("dtype " << std::string(name_of(dtype)));
      CAPTURE(vocab);
      const LinearProblem p{50, 64, vocab, dtype, 0, true};
      const Stream stream;
      const BackendScope scope(device_context(static_cast<cudaStream_t>(stream)));
      EveryCall call(p, vocab == 1000);
      call.enqueue();  // chooses the products' algorithms
      const std::vector<Buffer> first = copies(call.results());
      const LossSumsData first_sums = call.sums();

      (void)call.results();
      Graph graph(stream, [&] { call.enqueue(); });
      CHECK(graph.only_device_work());
      graph.launch();
      CHECK(differing(call.results(), first) == 0);
      const LossSumsData sums = call.sums();
      CHECK(std::memcmp(&sums, &first_sums, sizeof sums) == 0);

      for (const std::int64_t step : {2, 3}) {
        const Buffer targets = some_targets(p, step);
        call.set_targets(targets);
        call.set_denominator(10.0 * static_cast<double>(step));
        graph.launch();
        const LossSumsData got = call.sums();
        const std::vector<Buffer> results = copies(call.results());  // read while the device is the current backend
        const BackendScope host;
        EveryCall expected(p, vocab == 1000);
        expected.set_targets(targets);
        expected.set_denominator(10.0 * static_cast<double>(step));
        expected.enqueue();
        check_alike(dtype, results, copies(expected.results()));
        const LossSumsData want = expected.sums();
        CHECK(got.n_valid == want.n_valid);
        CHECK(got.errors.count == 0);
        CHECK(std::fabs(got.ce_sum - want.ce_sum) <= product_tolerance(dtype) * want.ce_sum);
        CHECK(std::fabs(got.z_sum - want.z_sum) <= 2 * product_tolerance(dtype) * want.z_sum);
      }
    }
  }
}
