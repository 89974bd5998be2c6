#include "test_files.h"

#include <doctest/doctest.h>
#include <greyhound/train/metrics.h>
#include <greyhound/train/number_text.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

StepMetrics example() {
  StepMetrics metrics;
  metrics.step = 7;
  metrics.tokens = 5'000'000'000;
  metrics.epoch = 1.0 / 3;
  metrics.loss = 2.302585092994046;
  metrics.lr = 1e-4 / 3;
  metrics.grad_norm = 0.1f;
  metrics.tokens_per_second = 123456.789;
  metrics.step_ms = 12.25;
  metrics.skipped_steps = 2;
  metrics.ranks = 3;
  return metrics;
}

}  // namespace

TEST_CASE("metrics: numbers survive to the bit") {
  const StepMetrics metrics = example();
  const auto line = nlohmann::json::parse(to_json(metrics));
  CHECK(line["step"].get<std::int64_t>() == 7);
  CHECK(line["tokens"].get<std::int64_t>() == 5'000'000'000);
  CHECK(line["epoch"].get<double>() == metrics.epoch);
  CHECK(line["loss"].get<double>() == metrics.loss);
  CHECK(line["lr"].get<double>() == metrics.lr);
  CHECK(line["grad_norm"].get<double>() == metrics.grad_norm);
  CHECK(line["tokens_per_second"].get<double>() == metrics.tokens_per_second);
  CHECK(line["step_ms"].get<double>() == 12.25);
  CHECK(line["skipped_steps"].get<std::int64_t>() == 2);
  CHECK(line["ranks"].get<std::int64_t>() == 3);
  CHECK_FALSE(line.contains("z_loss"));
  CHECK_FALSE(line.contains("val_loss"));
  CHECK_FALSE(line.contains("mfu"));
}

TEST_CASE("metrics: optional values appear where they are known") {
  StepMetrics metrics = example();
  metrics.z_loss = 0.5;
  metrics.val_loss = 1.75;
  metrics.mfu = 0.45;
  const auto line = nlohmann::json::parse(to_json(metrics));
  CHECK(line["z_loss"].get<double>() == 0.5);
  CHECK(line["val_loss"].get<double>() == 1.75);
  CHECK(line["mfu"].get<double>() == 0.45);
}

TEST_CASE("metrics: NaN and infinity are null, which is JSON") {
  StepMetrics metrics = example();
  metrics.loss = std::nan("");
  metrics.grad_norm = std::numeric_limits<double>::infinity();
  metrics.mfu = std::nan("");  // a GPU whose peak is not known
  const auto line = nlohmann::json::parse(to_json(metrics));
  CHECK(line["loss"].is_null());
  CHECK(line["grad_norm"].is_null());
  CHECK(line["mfu"].is_null());
}

TEST_CASE("metrics: one line a step, in the file at once; a new run starts an empty file") {
  const TemporaryFolder folder;
  const std::string path = write_file(folder / "metrics.jsonl", "old\n");
  MetricsFile file(path);
  CHECK(read_file(path) == "");
  file.write(example());
  file.write(example());
  CHECK(read_file(path) == to_json(example()) + "\n" + to_json(example()) + "\n");
  CHECK(contains(error_of([&] { MetricsFile(folder / "missing/metrics.jsonl"); }), "1: "));
}

TEST_CASE("numbers for people") {
  CHECK(with_commas(0) == "0");
  CHECK(with_commas(999) == "999");
  CHECK(with_commas(1000) == "1,000");
  CHECK(with_commas(-123456) == "-123,456");
  CHECK(with_commas(5'000'000'000) == "5,000,000,000");
  CHECK(short_number(950) == "950");
  CHECK(short_number(45230) == "45.2k");
  CHECK(short_number(123456) == "123k");
  CHECK(short_number(1234567) == "1.23M");
  CHECK(duration(59.4) == "59s");
  CHECK(duration(125) == "2m 05s");
  CHECK(duration(3600 + 120) == "1h 02m");
  CHECK(duration(std::nan("")) == "?");
}
