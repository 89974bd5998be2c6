#include <greyhound/train/tuned_products.h>

#include <greyhound/core/error.h>
#include <greyhound/kernels/matmul_choices.h>
#include <greyhound/train/cache_folder.h>
#include <greyhound/train/console.h>
#include <greyhound/train/file_io.h>
#include <greyhound/train/input_file.h>

#include <cstdint>
#include <filesystem>
#include <set>
#include <sstream>
#include <system_error>

namespace greyhound {

namespace {

// Adds the file's choices to the context's and returns its text, empty where there is no file. Throws an Error for what
// is not a readable text of choices.
std::string read_choices(const Context& context, const std::string& path) {
  constexpr std::uint64_t most_bytes = 64 << 20;
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return {};
  const std::string text = read_small_file(path, most_bytes);
  try {
    load_matmul_choices(context, text);
  } catch (const Error& malformed) {
    throw_runtime(path, ": ", malformed.what());
  }
  return text;
}

std::set<std::string> lines_of(const std::string& text) {
  std::set<std::string> all;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) all.insert(line);
  return all;
}

}  // namespace

std::string tuned_products_path() { return cache_folder() + "/matmul_choices.txt"; }

void load_tuned_products(const Context& context) {
  try {
    read_choices(context, tuned_products_path());
  } catch (const Error& error) {
    spdlog::warn("no products that were timed before: {}", error.what());
  }
}

void save_tuned_products(const Context& context) {
  try {
    // Not the one of texts, which may be held for as long as it takes to tokenize one.
    const CacheLock lock(make_cache_folder() + "/matmul_choices.lock");
    const std::string path = tuned_products_path();
    std::string text = read_choices(Context::cpu(), path);  // where none applies
    const std::set<std::string> known = lines_of(text);
    std::string added;
    for (const std::string& line : lines_of(save_matmul_choices(context))) {
      if (known.count(line) == 0) added += line + '\n';
    }
    if (added.empty()) return;
    if (!text.empty() && text.back() != '\n') text += '\n';
    write_atomically(path, text + added);
  } catch (const Error& error) {
    spdlog::warn("the timed products are not kept: {}", error.what());
  }
}

}  // namespace greyhound
