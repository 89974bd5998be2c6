#include "report.h"

#include <greyhound/core/error.h>
#include <greyhound/core/version.h>
#include <greyhound/kernels/matmul.h>

#include <nlohmann/json.hpp>

#include <sys/utsname.h>

#include <cstdio>
#include <ctime>
#include <fstream>

namespace greyhound::bench {

namespace {

using Json = nlohmann::ordered_json;

void write(const std::string& path, const Json& json) {
  std::ofstream file(path);
  if (!(file << json.dump(1) << '\n') || !file.flush()) throw_runtime(path, ": cannot be written");
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string utc_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  char text[32];
  return std::string(text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts)));
}

double ratio(const Row& row) { return row.times.work.median / row.times.floor.median; }

}  // namespace

void print_header() {
  std::printf("%-28s %-16s %6s %5s %7s %5s %-9s %6s %9s %9s %7s %19s %9s %11s\n", "operation", "mode", "N", "D", "V",
              "dtype", "budget", "chunk", "ms", "floor ms", "ratio", "ms p10..p90", "T(F|B)/s", "workspace");
}

void print(const Row& row) {
  char spread[64];
  std::snprintf(spread, sizeof spread, "%.3f..%.3f", row.times.work.p10, row.times.work.p90);
  std::printf("%-28s %-16s %6lld %5lld %7lld %5s %-9s %6lld %9.3f %9.3f %7.3f %19s %9.3f %9.1fMB\n",
              row.operation.c_str(), row.mode.c_str(), static_cast<long long>(row.N), static_cast<long long>(row.D),
              static_cast<long long>(row.V), row.dtype.c_str(), row.budget.empty() ? "-" : row.budget.c_str(),
              static_cast<long long>(row.chunk_rows), row.times.work.median, row.times.floor.median, ratio(row), spread,
              row.rate, static_cast<double>(row.workspace_bytes) * 1e-6);
  std::fflush(stdout);
}

void write_rows(const std::string& path, const std::vector<Row>& rows) {
  Json all = Json::array();
  for (const Row& row : rows) {
    Json object{{"operation", row.operation},
                {"mode", row.mode},
                {"N", row.N},
                {"D", row.D},
                {"V", row.V},
                {"dtype", row.dtype},
                {"milliseconds", row.times.work.median},
                {"floor_milliseconds", row.times.floor.median},
                {"ratio", ratio(row)},
                {"rate", row.rate},
                {"workspace_bytes", row.workspace_bytes},
                {"milliseconds_p10_p90", {row.times.work.p10, row.times.work.p90}},
                {"floor_milliseconds_p10_p90", {row.times.floor.p10, row.times.floor.p90}},
                {"repeats", row.times.repeats}};
    if (!row.budget.empty()) {
      object["budget"] = row.budget;
      object["chunk_rows"] = row.chunk_rows;
      object["chunks"] = row.chunks;
    }
    all.push_back(std::move(object));
  }
  write(path, all);
}

Facts environment(const Context& context, int argc, const char* const* argv) {
  Facts facts;
  std::string command;
  for (int i = 0; i < argc; ++i) {
    if (i > 0) command += ' ';
    command += argv[i];
  }
  facts.emplace_back("command", command);
  facts.emplace_back("date", utc_date());
  facts.emplace_back("greyhound", GREYHOUND_VERSION);
  if (context.device().is_cuda()) {
    for (auto& fact : cuda::device_facts(context)) facts.push_back(std::move(fact));
  } else {
    facts.emplace_back("device", processor_name());
    facts.emplace_back("threads", std::to_string(context.threads()));
  }
  facts.emplace_back("products", matmul_library(context));
  utsname system{};
  if (uname(&system) == 0) facts.emplace_back("system", concat(system.sysname, " ", system.release));
  return facts;
}

std::string environment_path(const std::string& rows_path) {
  const std::string suffix = ".json";
  const bool has_suffix = rows_path.size() > suffix.size() &&
                          rows_path.compare(rows_path.size() - suffix.size(), suffix.size(), suffix) == 0;
  return rows_path.substr(0, rows_path.size() - (has_suffix ? suffix.size() : 0)) + ".environment.json";
}

void write_environment(const std::string& path, const Facts& facts) {
  Json json = Json::object();
  for (const auto& [name, value] : facts) json[name] = value;
  write(path, json);
}

}  // namespace greyhound::bench
