// greyhound-bench: times the loss module beside the bare work that bounds it, and training steps.
#include "loss.h"
#include "step.h"

#include <greyhound/core/error.h>

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>

using namespace greyhound;

namespace {

bench::LinearShape parse_shape(const std::string& text) {
  bench::LinearShape shape{};
  char x1 = 0, x2 = 0;
  std::istringstream stream(text);
  if (!(stream >> shape.tokens >> x1 >> shape.hidden >> x2 >> shape.vocab) || x1 != 'x' || x2 != 'x' || !stream.eof() ||
      shape.tokens < 1 || shape.hidden < 1 || shape.vocab < 1) {
    throw_usage("--shape ", text, ": expected tokens x hidden x vocab, such as 256x768x50304");
  }
  return shape;
}

DType parse_dtype(const std::string& name) {
  for (DType dtype : {DType::bf16, DType::fp16}) {
    if (name == name_of(dtype)) return dtype;
  }
  return DType::fp32;
}

std::vector<bench::LossWork> works(const std::vector<std::string>& sets, const std::vector<std::string>& shapes,
                                   bool cuda) {
  std::vector<bench::LossWork> list;
  for (const std::string& set : sets) list.push_back(bench::loss_set(set));
  std::vector<bench::LinearShape> parsed;
  for (const std::string& shape : shapes) parsed.push_back(parse_shape(shape));
  if (!parsed.empty()) list.push_back(bench::loss_work(parsed));
  if (list.empty()) list.push_back(bench::loss_set(cuda ? "limits" : "small"));
  return list;
}

CLI::App* add_step(CLI::App& app, bench::StepOptions& options, std::string& device, int& threads) {
  CLI::App* step = app.add_subcommand("step", "A whole training step, and what its parts take");
  step->add_option("--model", options.model, bench::step_models())->capture_default_str();
  const CLI::Range count(0, 1 << 20);
  step->add_option("--micro-batch", options.micro_batch, "Rows of a pass; 0: the model's")->check(count);
  step->add_option("--block", options.block, "Tokens of a row; 0: the model's")->check(count);
  step->add_option("--accumulation", options.accumulation, "Micro-batches of a step; 0: the model's")->check(count);
  step->add_option("--recompute", options.recompute, "As train.recompute");
  step->add_option("--precision", options.precision, "As run.precision (default: bf16 on cuda, fp32 on cpu)");
  step->add_flag("--tune", options.tuned, "On CUDA, time the products' algorithms before the first step");
  step->add_flag("!--no-graphs", options.graphs, "On CUDA, time a step that is enqueued kernel by kernel");
  // A comparison that NaN does not pass.
  const auto some_time = [](const std::string& text) {
    const double seconds = std::strtod(text.c_str(), nullptr);
    return seconds >= 0 && seconds <= 1e5 ? std::string() : "expected seconds from 0 to 100000, got " + text;
  };
  step->add_option("--seconds", options.seconds, "Of timed steps, about")->check(some_time)->capture_default_str();
  step->add_option("--device", device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}));
  step->add_option("--threads", threads, "CPU threads; 0: all");
  step->add_option("--json", options.json, "Write the figures to this file, and the environment beside it");
  return step;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Benchmarks of Greyhound");
  app.require_subcommand(1);
  CLI::App* loss = app.add_subcommand("loss", "The loss module against a copy and against the bare products");
  std::vector<std::string> shapes, sets, operations;
  std::string device = "cpu", dtype, json, choices;
  int threads = 0;
  bool untuned = false;
  loss->add_option("--set", sets,
                   "limits, sweep or small; several may be given (default: limits on cuda, small on cpu)")
      ->check(CLI::IsMember({"limits", "sweep", "small"}));
  loss->add_option("--shape", shapes, "tokens x hidden x vocab; several may be given");
  loss->add_option("--operation", operations, "Measure only this operation; several may be given")
      ->check(CLI::IsMember({"cross_entropy_with_grad", "selective_log_softmax", "chunked_linear_cross_entropy"}));
  loss->add_option("--device", device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}));
  loss->add_option("--dtype", dtype, "fp32, bf16 or fp16 (default: bf16 on cuda, fp32 on cpu)")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  loss->add_option("--threads", threads, "CPU threads; 0: all");
  loss->add_flag("--untuned", untuned, "Chunked calls take the first algorithm that the library's heuristic offers");
  loss->add_option("--choices", choices, "Keep the products' algorithms in this file, and tune only what it lacks");
  loss->add_option("--json", json, "Write the rows to this file, and the environment beside it");
  bench::StepOptions step_options;
  const CLI::App* step = add_step(app, step_options, device, threads);
  CLI11_PARSE(app, argc, argv);

  try {
    const Context context = device == "cuda" ? Context::cuda() : Context::cpu(threads);
    const bool cuda = context.device().is_cuda();
    const bench::Facts facts = bench::environment(context, argc, argv);
    for (const auto& [name, value] : facts) std::printf("%s: %s\n", name.c_str(), value.c_str());
    if (step->parsed()) {
      bench::step(context, step_options, facts);
      return 0;
    }

    const bench::LossOptions options{parse_dtype(dtype.empty() ? (cuda ? "bf16" : "fp32") : dtype), !untuned,
                                     operations};
    bench::Tuning tuning(context, choices);
    const auto begin = std::chrono::steady_clock::now();
    if (!json.empty()) bench::write_environment(bench::environment_path(json), facts);
    std::vector<bench::Row> rows;
    bench::print_header();
    const auto add = [&](const bench::Row& row) {
      bench::print(row);
      rows.push_back(row);
      // After each row: an error in a later one loses nothing.
      if (!json.empty()) bench::write_rows(json, rows);
    };
    for (const bench::LossWork& work : works(sets, shapes, cuda)) bench::loss(context, work, options, tuning, add);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf("%zu rows in %.1f s, of which tuning took %.1f s\n", rows.size(), seconds, tuning.seconds());
  } catch (const Error& error) {
    std::fprintf(stderr, "greyhound-bench: error: %s\n", error.what());
    return error.exit_code();
  }
}
