#include <greyhound/train/tuned_products.h>

#include <greyhound/kernels/matmul_choices.h>
#include <greyhound/train/cache_folder.h>
#include <greyhound/train/console.h>
#include <greyhound/train/file_io.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

namespace greyhound {

namespace {

// Empty where there is no such file.
std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The text, or nothing where its choices cannot be read.
std::string usable(const std::string& text) {
  try {
    load_matmul_choices(Context::cpu(), text);
  } catch (const Error&) {
    return {};
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
    load_matmul_choices(context, text_of(tuned_products_path()));
  } catch (const Error& error) {
    spdlog::warn("{}: {}; products are timed again", tuned_products_path(), error.what());
  }
}

void save_tuned_products(const Context& context) {
  try {
    make_cache_folder();
    std::string text = usable(text_of(tuned_products_path()));
    if (!text.empty() && text.back() != '\n') text += '\n';
    const std::set<std::string> known = lines_of(text);
    for (const std::string& line : lines_of(save_matmul_choices(context))) {
      if (known.count(line) == 0) text += line + '\n';
    }
    write_atomically(tuned_products_path(), text);
  } catch (const Error& error) {
    spdlog::warn("timed products are not kept: {}", error.what());
  }
}

}  // namespace greyhound
