#include "test_files.h"

#include <doctest/doctest.h>
#include <greyhound/train/metrics.h>
#include <greyhound/train/number_text.h>
#include <sys/resource.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <csignal>
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
  metrics.comm_ms = 0.25;
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
  CHECK(line["comm_ms"].get<double>() == 0.25);
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

TEST_CASE("metrics: a run that goes on keeps the lines up to its step, and nothing else") {
  const TemporaryFolder folder;
  const auto line = [](std::int64_t step) {
    StepMetrics metrics = example();
    metrics.step = step;
    return to_json(metrics) + "\n";
  };
  const struct {
    std::string before;
    std::int64_t after_step;
    std::string kept;
    std::int64_t last_step;
  } cases[] = {
      {line(1) + line(2) + line(3), 2, line(1) + line(2), 2},
      {line(1) + line(2), 2, line(1) + line(2), 2},
      {line(1) + line(2), 5, line(1) + line(2), 2},                       // lines were lost
      {line(1) + line(2).substr(0, 20), 2, line(1), 1},                   // the crash cut a line
      {line(1) + line(2).substr(0, 20) + "\n" + line(3), 3, line(1), 1},  // or left a part of one
      {line(1) + line(2) + line(2) + line(3), 3, line(1) + line(2), 2},   // never twice
      {"", 2, "", 0},
      {"something else\n", 2, "", 0},
  };
  const std::string path = folder / "metrics.jsonl";
  for (const auto& test : cases) {
    CAPTURE(test.before);
    write_file(path, test.before);
    MetricsFile file(path, test.after_step);
    CHECK(read_file(path) == test.kept);
    CHECK(file.last_step() == test.last_step);
    StepMetrics next = example();
    next.step = test.after_step + 1;
    file.write(next);
    CHECK(read_file(path) == test.kept + line(test.after_step + 1));
  }
  // What an editor or somebody else wrote is not lost.
  std::string edited = line(1) + " " + line(2) + line(3);
  write_file(path, edited);
  MetricsFile{path, 3};
  CHECK(read_file(path) == line(1));
  CHECK(read_file(path + ".old") == edited);
  edited = line(1);
  edited.insert(edited.size() - 1, 1, '\r');
  write_file(path, edited + line(2));
  CHECK(MetricsFile(path, 2).last_step() == 2);
}

TEST_CASE("metrics: lines that cannot be written come later, each once and whole") {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl", line = to_json(example()) + "\n";
  MetricsFile file(path);
  file.write(example());

  // The largest size of a file stands in for a full disk; it lets half a line through.
  rlimit old{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &old) == 0);
  const auto ignore = std::signal(SIGXFSZ, SIG_IGN);
  rlimit full = old;
  full.rlim_cur = line.size() + line.size() / 2;
  REQUIRE(setrlimit(RLIMIT_FSIZE, &full) == 0);
  const std::string first = error_of([&] { file.write(example()); });
  const std::string second = error_of([&] { file.write(example()); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, ignore);
  CHECK(contains(first, "1: " + path + ": cannot be written: "));
  CHECK(second == first);
  CHECK(read_file(path) == line);
  file.write(example());
  CHECK(read_file(path) == line + line + line + line);

  std::filesystem::remove(path);
  file.write(example());
  CHECK(read_file(path) == line);
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
