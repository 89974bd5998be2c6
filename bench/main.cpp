// greyhound-bench: times the loss module beside the bare work that bounds it.
#include "loss.h"

#include <greyhound/core/error.h>
#include <greyhound/kernels/matmul.h>

#include <CLI/CLI.hpp>

#include <cstdio>
#include <sstream>

using namespace greyhound;

namespace {

bench::LossShape parse_shape(const std::string& text) {
  bench::LossShape shape{};
  char x1 = 0, x2 = 0;
  std::istringstream stream(text);
  if (!(stream >> shape.tokens >> x1 >> shape.hidden >> x2 >> shape.vocab) || x1 != 'x' || x2 != 'x' || !stream.eof()) {
    throw_usage("--shape ", text, ": expected tokens x hidden x vocab, such as 256x768x50304");
  }
  return shape;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Benchmarks of Greyhound");
  app.require_subcommand(1);
  CLI::App* loss = app.add_subcommand("loss", "The loss module against a copy and against the bare products");
  std::vector<std::string> shapes;
  std::string device = "cpu", dtype = "fp32", json;
  int threads = 0;
  loss->add_option("--shape", shapes, "tokens x hidden x vocab; several may be given");
  loss->add_option("--device", device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}));
  loss->add_option("--dtype", dtype, "fp32 or bf16")->check(CLI::IsMember({"fp32", "bf16"}));
  loss->add_option("--threads", threads, "CPU threads; 0: all");
  loss->add_option("--json", json, "Write the rows to this file");
  CLI11_PARSE(app, argc, argv);

  try {
    const Context context = device == "cuda" ? Context::cuda() : Context::cpu(threads);
    std::vector<bench::LossShape> list;
    for (const std::string& shape : shapes) list.push_back(parse_shape(shape));
    if (list.empty()) {
      list = context.device().is_cuda() ? std::vector<bench::LossShape>{{8192, 768, 50304},
                                                                        {8192, 1024, 128256},
                                                                        {8192, 2048, 128256},
                                                                        {8192, 4096, 32000}}
                                        : std::vector<bench::LossShape>{{768, 128, 256}, {256, 768, 50304}};
    }
    std::printf("%s, %d threads, products: %s\n", to_string(context.device()).c_str(), context.threads(),
                matmul_library(context).c_str());
    const std::vector<bench::Row> rows = bench::loss(context, list, dtype == "bf16" ? DType::bf16 : DType::fp32);
    if (!json.empty()) bench::write_json(json, rows);
  } catch (const Error& error) {
    std::fprintf(stderr, "greyhound-bench: error: %s\n", error.what());
    return error.exit_code();
  }
}
