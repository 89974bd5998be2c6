#include "step_report.h"

#include <greyhound/core/arena.h>
#include <greyhound/core/error.h>

#include <nlohmann/json.hpp>

#include <cstdio>
#include <fstream>

namespace greyhound::bench {

namespace {

// Milliseconds that the part's work takes at the rates of bare work; 0: not known.
double floor_of(const StepPart& part, const DeviceRates& rates) {
  return 1e3 * part.work / (part.is_product ? rates.operations : rates.bytes);
}

double achieved(const StepPart& part) { return 1e-9 * part.work / part.milliseconds; }  // tera a second

double mfu(const StepReport& report) {
  return report.tokens_per_second / static_cast<double>(report.ranks) * report.flops_per_token / report.peak_flops;
}

void print_part(const StepReport& report, const StepPart& part, double all) {
  std::printf("%-36s %6lld %10.3f %6.1f %%", part.name.c_str(), static_cast<long long>(part.calls), part.milliseconds,
              100 * part.milliseconds / all);
  if (part.work > 0) {
    const double floor = floor_of(part, report.rates);
    std::printf(" %9.3f %s %10.3f %7.2f", achieved(part), part.is_product ? "TFLOP/s" : "TB/s   ", floor,
                part.milliseconds / floor);
  }
  std::printf("\n");
}

}  // namespace

void print(const StepReport& report) {
  std::printf("%-36s %6s %10s %8s %17s %10s %7s\n", "part", "calls", "ms", "share", "achieved", "floor ms", "ratio");
  const double all = report.parts_milliseconds();
  for (const StepPart& part : report.parts) print_part(report, part, all);
  std::printf("%-36s %6s %10.3f  (a step that was observed: %.3f ms)\n", "all parts", "", all,
              report.observed_milliseconds);
  std::printf("floors: a square product at %.3f TFLOP/s, a copy at %.3f TB/s, measured in this run\n",
              1e-12 * report.rates.operations, 1e-12 * report.rates.bytes);
  std::printf("step%s: %.3f ms (p10 %.3f, p90 %.3f), %.2f times all parts, of %d steps of %.0f tokens, %.0f tokens/s",
              report.graphs ? " as CUDA graphs" : "", report.milliseconds, report.milliseconds_p10,
              report.milliseconds_p90, report.milliseconds / all, report.steps, report.tokens(),
              report.tokens_per_second);
  if (report.peak_flops > 0) std::printf(", mfu %.1f %%", 100 * mfu(report));
  std::printf(", memory planned %s", format_bytes(static_cast<double>(report.memory_bytes)).c_str());
  if (report.resident_bytes > 0) {
    std::printf(", peak resident %s", format_bytes(static_cast<double>(report.resident_bytes)).c_str());
  }
  std::printf("\n");
}

void write_step(const std::string& path, const StepReport& report) {
  using Json = nlohmann::ordered_json;
  Json parts = Json::array();
  for (const StepPart& part : report.parts) {
    Json object{{"part", part.name}, {"calls", part.calls}, {"milliseconds", part.milliseconds}};
    if (part.work > 0) {
      object[part.is_product ? "tflops" : "terabytes_per_second"] = achieved(part);
      object["floor_milliseconds"] = floor_of(part, report.rates);
      object["ratio"] = part.milliseconds / floor_of(part, report.rates);
    }
    parts.push_back(std::move(object));
  }
  Json json{{"model", report.model},
            {"device", report.device},
            {"ranks", report.ranks},
            {"precision", report.precision},
            {"recompute", report.recompute},
            {"micro_batch", report.micro_batch},
            {"block_size", report.block},
            {"accumulation", report.accumulation},
            {"tuned_products", report.tuned_products},
            {"cuda_graphs", report.graphs},
            {"parameters", report.parameters},
            {"tokens_per_second", report.tokens_per_second},
            {"memory_bytes", report.memory_bytes},
            {"milliseconds", report.milliseconds},
            {"milliseconds_p10_p90", {report.milliseconds_p10, report.milliseconds_p90}},
            {"steps", report.steps},
            {"flops_per_token", report.flops_per_token}};
  if (report.resident_bytes > 0) json["resident_bytes"] = report.resident_bytes;
  if (report.peak_flops > 0) json["mfu"] = mfu(report);
  json["parts_milliseconds"] = report.parts_milliseconds();
  json["observed_milliseconds"] = report.observed_milliseconds;
  json["product_tflops"] = 1e-12 * report.rates.operations;
  json["copy_terabytes_per_second"] = 1e-12 * report.rates.bytes;
  json["parts"] = std::move(parts);
  std::ofstream file(path);
  if (!(file << json.dump(1) << '\n') || !file.flush()) throw_runtime(path, ": cannot be written");
}

}  // namespace greyhound::bench
