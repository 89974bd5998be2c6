#include <greyhound/kernels/matmul_choices.h>

#include <greyhound/kernels/backend.h>
#include <greyhound/kernels/matmul_choice.h>

#include <algorithm>
#include <charconv>

namespace greyhound {

namespace {

constexpr std::array<const char*, MatmulKey::fields> field_names{
    "m",   "n",      "k",       "a",       "out",     "transpose_a", "transpose_b", "lda",           "ldb",
    "ldc", "ld_out", "align_a", "align_b", "align_c", "align_out",   "bias",        "device_scalars"};
constexpr std::string_view hexadecimal_digits = "0123456789abcdef";
constexpr std::array<DType, 3> dtypes{DType::fp32, DType::bf16, DType::fp16};

bool is_dtype(int field) { return field == MatmulKey::dtype || field == MatmulKey::to_dtype; }
bool is_flag(int field) {
  return field == MatmulKey::transpose_a || field == MatmulKey::transpose_b || field == MatmulKey::bias ||
         field == MatmulKey::device_scalars;
}

// Reads one line from left to right; every mistake names the line and what stands there.
class Line {
 public:
  Line(std::string_view text, std::int64_t number) : rest_(text), number_(number) {}

  void expect(std::string_view literal) {
    if (rest_.substr(0, literal.size()) != literal) fail(literal);
    rest_.remove_prefix(literal.size());
  }
  std::string_view until(char end, std::string_view what) {
    const std::size_t length = rest_.find(end);
    if (length == std::string_view::npos || length == 0) fail(what);
    const std::string_view word = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return word;
  }
  std::int64_t integer(std::string_view what) {
    std::int64_t value = 0;
    const char *first = rest_.data(), *last = first + rest_.size();
    const auto [end, error] = std::from_chars(first, last, value);
    if (error != std::errc() || value < 0) fail(what);
    rest_.remove_prefix(static_cast<std::size_t>(end - first));
    return value;
  }
  std::string_view take(std::size_t length, std::string_view what) {
    if (rest_.size() < length) fail(what);
    const std::string_view word = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return word;
  }
  std::uint64_t hexadecimal() {
    constexpr std::string_view expected = "128 hexadecimal digits";
    std::uint64_t value = 0;
    for (char digit : take(16, expected)) {
      const std::size_t at = hexadecimal_digits.find(digit);
      if (at == std::string_view::npos) fail(concat(expected, " before this"));
      value = value << 4 | at;
    }
    return value;
  }
  void end() const {
    if (!rest_.empty()) fail("the end of the line");
  }
  [[noreturn]] void fail(std::string_view expected) const {
    throw_usage("matmul choices, line ", number_, ": expected ", expected, ", got \"", rest_.substr(0, 40), "\"");
  }

 private:
  std::string_view rest_;
  std::int64_t number_;
};

std::int64_t parse_field(Line& line, int field) {
  if (is_dtype(field)) {
    const std::string_view name = line.take(4, "a dtype");
    for (DType dtype : dtypes) {
      if (name == name_of(dtype)) return static_cast<std::int64_t>(dtype);
    }
    line.fail("fp32, bf16 or fp16 before this");
  }
  const std::int64_t value = line.integer("a number");
  if (is_flag(field) && value > 1) line.fail("0 or 1 before this");
  return value;
}

MatmulChoice parse(Line line) {
  MatmulChoice choice;
  line.expect("\"");
  choice.device = line.until('"', "the device's name");
  line.expect("\" cublaslt=");
  choice.library = line.integer("the library's version");
  for (int field = 0; field < MatmulKey::fields; ++field) {
    line.expect(concat(" ", field_names[field], "="));
    choice.key.values[field] = parse_field(line, field);
  }
  line.expect(" algorithm=");
  for (std::uint64_t& word : choice.algorithm) word = line.hexadecimal();
  line.end();
  return choice;
}

}  // namespace

std::string matmul_choice_line(const MatmulChoice& choice) {
  std::string text = concat('"', choice.device, "\" cublaslt=", choice.library);
  for (int field = 0; field < MatmulKey::fields; ++field) {
    const std::int64_t value = choice.key.values[field];
    text += concat(' ', field_names[field], '=');
    text += is_dtype(field) ? std::string(name_of(static_cast<DType>(value))) : std::to_string(value);
  }
  text += " algorithm=";
  for (std::uint64_t word : choice.algorithm) {
    for (int shift = 60; shift >= 0; shift -= 4) text += hexadecimal_digits[word >> shift & 15];
  }
  return text + '\n';
}

std::vector<MatmulChoice> parse_matmul_choices(std::string_view text) {
  std::vector<MatmulChoice> choices;
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t length = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty() || line.front() == '#') continue;
    choices.push_back(parse(Line(line, number)));
  }
  return choices;
}

TuneMatmuls::TuneMatmuls(const Context& context) : context_(context) {
  if (context_.device().is_cuda()) before_ = cuda::tune_new_matmuls(context_);
}

TuneMatmuls::~TuneMatmuls() {
  if (context_.device().is_cuda()) cuda::stop_tuning_new_matmuls(context_, before_);
}

std::string save_matmul_choices(const Context& context) {
  std::string text;
  run_on_device(
      context, [] {},
      [&] {
        for (const MatmulChoice& choice : cuda::matmul_choices(context)) text += matmul_choice_line(choice);
      });
  return text;
}

std::int64_t load_matmul_choices(const Context& context, std::string_view text) {
  const std::vector<MatmulChoice> choices = parse_matmul_choices(text);
  std::int64_t applied = 0;
  run_on_device(
      context, [] {}, [&] { applied = cuda::add_matmul_choices(context, choices); });
  return applied;
}

}  // namespace greyhound
