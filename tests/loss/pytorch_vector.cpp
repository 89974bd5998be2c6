// Losses and gradients of F.linear + F.cross_entropy, stored by scripts/make_loss_vector.py, as a second witness.
#include <tests/differences.h>
#include <tests/loss/linear_problem.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>

using namespace greyhound;
using namespace greyhound::test;

namespace {

// The formulas of the script.
std::uint32_t mix(std::uint32_t stream, std::uint32_t index) {
  std::uint32_t x = stream * 0x9E3779B1u + index;
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  return x ^ (x >> 16);
}

Buffer noise(std::uint32_t stream, const Shape& shape, double scale = 1, double shift = 0) {
  Buffer buffer(DType::fp32, shape);
  return buffer.fill([&](std::int64_t i, std::int64_t j) {
    const double value = (mix(stream, static_cast<std::uint32_t>(i * shape.columns() + j)) >> 20) / 1024.0 - 2;
    return scale * value + shift;
  });
}

struct Case {
  std::string name, reduction;
  std::int64_t ignore_index = 0;
  float smoothing = 0, z_loss = 0, softcap = 0, logit_scale = 1;
  bool weighted = false, biased = false;
  std::map<std::string, std::vector<double>> values;
};

std::vector<Case> read_cases(std::int64_t& n, std::int64_t& d, std::int64_t& v) {
  std::ifstream file(GREYHOUND_SOURCE_DIR "/tests/loss/data/linear_cross_entropy.txt");
  REQUIRE(file.good());
  std::vector<Case> cases;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    if (key == "#") continue;
    if (key == "shape") {
      words >> n >> d >> v;
    } else if (key == "case") {
      Case c;
      words >> c.name >> c.reduction >> c.ignore_index >> c.smoothing >> c.z_loss >> c.softcap >> c.logit_scale >>
          c.weighted >> c.biased;
      REQUIRE_FALSE(words.fail());
      cases.push_back(c);
    } else {
      std::vector<double>& values = cases.back().values[key];
      for (double value; words >> value;) values.push_back(value);
    }
  }
  return cases;
}

// Within 2e-6 of the largest element.
void check_matrix(const char* name, const Buffer& got, const std::vector<double>& want) {
  REQUIRE(static_cast<std::int64_t>(want.size()) == got.elements());
  const double largest = largest_magnitude(want);
  CHECK(largest > 0);
  INFO(name);
  for (std::int64_t i = 0; i < got.elements(); ++i) {
    CAPTURE(i);
    CHECK(std::fabs(got[i] - want[static_cast<std::size_t>(i)]) <= 2e-6 * largest);
  }
}

}  // namespace

TEST_CASE_ON_EACH_BACKEND("chunked_linear_cross_entropy: losses and gradients of PyTorch") {
  std::int64_t n = 0, d = 0, v = 0;
  const std::vector<Case> cases = read_cases(n, d, v);
  CHECK(cases.size() == 14);
  Buffer class_weights = noise(6, Shape{v}, 0.25, 1), upstream = noise(7, Shape{n});
  for (const Case& c : cases) {
    CAPTURE(c.name);
    const LinearProblem p{n, d, v, DType::fp32, 0, c.biased};
    LinearData data(p);
    data.inputs = noise(1, Shape{n, d});
    data.weight = noise(2, Shape{v, d});
    data.bias = noise(3, Shape{v});
    for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(n); ++i) {
      data.targets.set_index(0, i, mix(4, i) % 5 == 0 ? c.ignore_index : mix(5, i) % static_cast<std::uint32_t>(v));
    }
    loss::CrossEntropyOptions options;
    options.reduction = c.reduction == "mean"  ? loss::Reduction::mean
                        : c.reduction == "sum" ? loss::Reduction::sum
                                               : loss::Reduction::none;
    options.ignore_index = c.ignore_index;
    options.label_smoothing = c.smoothing;
    options.z_loss_multiplier = c.z_loss;
    options.softcap = c.softcap;
    options.logit_scale = c.logit_scale;
    if (c.weighted) options.class_weights = class_weights;
    if (c.reduction == "none") options.upstream = upstream;
    for (const std::int64_t chunk_rows : {4, 13}) {
      loss::PlanOptions plan;
      plan.chunk_rows = chunk_rows;
      const LinearResult got = run_linear(p, data, options, plan, {true, true, c.biased});
      check_matrix("loss", got.row_loss, c.values.at("loss"));
      check_matrix("grad_input", got.grad_input, c.values.at("grad_input"));
      check_matrix("grad_weight", got.grad_weight, c.values.at("grad_weight"));
      if (c.biased) check_matrix("grad_bias", got.grad_bias, c.values.at("grad_bias"));
    }
  }
}
