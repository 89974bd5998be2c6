// Two processes give the same bits, on the CPU with 1, 2 and 4 threads: this program runs itself and compares what it
// prints.
#include <tests/loss/row_call.h>
#include <tests/loss/selective_problem.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

using namespace greyhound;
using namespace greyhound::test;

namespace {

constexpr const char* child_variable = "GREYHOUND_TEST_CHILD";  // a number of threads, or "device"

// FNV-1a of the elements' bytes, as text.
std::string digest(const Buffer& buffer) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  const ConstTensor tensor = buffer.host();
  const std::size_t element = size_of(tensor.dtype);
  for (std::int64_t i = 0; i < tensor.rows(); ++i) {
    const unsigned char* row =
        static_cast<const unsigned char*>(tensor.data) + static_cast<std::size_t>(i * tensor.row_stride) * element;
    for (std::size_t b = 0; b < static_cast<std::size_t>(tensor.columns()) * element; ++b) {
      hash = (hash ^ row[b]) * 0x100000001b3u;
    }
  }
  return std::to_string(hash) + " ";
}

// One line per call.
std::string bits(int threads) {
  std::string text;
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const LinearProblem p{130, 40, 1100, dtype, 1104, true};
    loss::PlanOptions plan;
    plan.chunk_rows = 48;
    const LinearResult r = run_linear(p, LinearData(p), {}, plan, {true, true, true}, threads);
    char loss[40];
    std::snprintf(loss, sizeof loss, "bits %a ", r.sums.ce_sum);
    text += loss + digest(r.grad_input) + digest(r.grad_weight) + digest(r.grad_bias) + "\n";
    const SelectiveResult s = run_selective(p, LinearData(p), Selection(p.rows, 2, p.vocab), {}, plan, {}, threads);
    text += "bits " + digest(s.out) + digest(s.gradients.grad_input) + digest(s.gradients.grad_weight) + "\n";
    Normal normal(5);
    Buffer logits = Buffer(dtype, Shape{9, 20000}).fill([&](auto, auto) { return 3 * normal(); });
    const RowCallResult rows = run_cross_entropy(logits, targets({0, 1, 2, -100, 4, 5, 6, 19999, 8}));
    text += "bits " + digest(rows.grad) + digest(rows.loss) + digest(rows.entropy) + "\n";
  }
  return text;
}

std::string child(const std::string& runs_with) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command =
      std::string(child_variable) + "=" + runs_with + " '" + program + "' --no-skip --test-case='losses: the child*'";
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string lines;
  char line[400];
  while (std::fgets(line, sizeof line, pipe) != nullptr) {
    if (std::string(line).rfind("bits", 0) == 0) lines += line;
  }
  CHECK(pclose(pipe) == 0);
  return lines;
}

}  // namespace

TEST_CASE("losses: the child of the next tests" * doctest::skip()) {
  const char* runs_with = std::getenv(child_variable);
  REQUIRE(runs_with != nullptr);
  if (std::string(runs_with) == "device") {
    const BackendScope scope(device_context());
    std::fputs(bits(1).c_str(), stdout);
  } else {
    std::fputs(bits(std::atoi(runs_with)).c_str(), stdout);
  }
}

TEST_CASE("losses: two processes, with 1, 2 and 4 threads, give the same bits") {
  const std::string here = bits(1);
  CHECK(std::count(here.begin(), here.end(), '\n') == 9);
  for (const char* threads : {"1", "2", "4"}) CHECK(child(threads) == here);
}

TEST_CASE("losses: two processes give the same bits on CUDA" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const BackendScope scope(device_context());
  const std::string here = bits(1);
  CHECK(std::count(here.begin(), here.end(), '\n') == 9);
  CHECK(here.find("bits nan") == std::string::npos);
  for (int process = 0; process < 2; ++process) CHECK(child("device") == here);
}
