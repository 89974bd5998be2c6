// Row operations on CUDA over vocabularies that are split in pieces and over blocks, row counts around the number of
// multiprocessors, and every placement in memory; against the CPU, and on a few rows against fp64.
#include <tests/loss/all_pairs.h>
#include <tests/loss/row_call.h>
#include <tests/loss/selective_problem.h>

#include <string>

using namespace greyhound;
using namespace greyhound::test;

namespace {

const std::vector<std::int64_t> vocabs{1500,  2047,  2048,   2049,   4095,   4096,   4097,  8191,
                                       8192,  8193,  12288,  16383,  16384,  16385,  32000, 32768,
                                       50257, 65537, 100352, 128256, 131073, 200064, 262144};
const std::vector<std::int64_t> row_counts{1, 2, 3, 17, 131, 132, 133, 265};
const std::vector<DType> dtypes{DType::fp32, DType::bf16, DType::fp16};
enum Operation { in_place, out_of_place, loss_alone, selective, selective_in_place, operations };

// Elements between an aligned address and the logits, the gradient, and what a row has behind its vocabulary: stored
// columns, and more between the rows.
struct Placement {
  std::int64_t logits_offset, grad_offset, padding, gap, grad_gap;
};
const std::vector<Placement> placements{
    {0, 0, 0, 0, 0}, {0, 0, 8, 8, 8},  {1, 1, 0, 0, 0}, {0, 1, 0, 0, 0},  {2, 0, 1, 0, 3},     {3, 7, 0, 1, 0},
    {4, 5, 3, 4, 5}, {5, 4, 0, 16, 2}, {6, 3, 5, 0, 1}, {7, 6, 16, 0, 9}, {1000, 8, 0, 24, 0},
};

enum Factor {
  vocab_factor,
  rows_factor,
  dtype_factor,
  operation_factor,
  placement_factor,
  options_factor,
  keep_factor
};
const std::vector<int> levels{23, 8, 3, operations, 11, 7, 2};

struct Case {
  std::int64_t rows, vocab;
  DType dtype;
  Operation operation;
  Placement at;
  loss::CrossEntropyOptions options;
  bool class_weights = false, row_weights = false, keep = false;
};

Case case_of(const Choice& choice) {
  Case c{row_counts[choice[rows_factor]],      vocabs[choice[vocab_factor]],
         dtypes[choice[dtype_factor]],         static_cast<Operation>(choice[operation_factor]),
         placements[choice[placement_factor]], {}};
  const int option = choice[options_factor];
  c.options.reduction = option == 0 ? loss::Reduction::mean : loss::Reduction::sum;
  if (option == 1 || option == 6) c.options.label_smoothing = 0.1f;
  if (option == 2 || option == 6) c.options.z_loss_multiplier = 1e-2f;
  if (option == 3 || option == 6) c.options.softcap = 15;
  if (option == 4 || option == 6) c.options.logit_scale = 0.7f;
  c.class_weights = option >= 5;
  c.row_weights = option == 5;
  c.keep = choice[keep_factor] != 0;
  return c;
}

constexpr std::int64_t most_logits = 7'000'000;

enum Kind { plain, with_masks, confident, masked_target, with_nan, with_infinity, all_masked, only_target, far_off };

// What row i is like, and whether it counts.
Kind kind_of(const Case& c, std::int64_t row) {
  const bool exact = c.options.softcap == 0 && c.options.logit_scale == 1;
  switch ((row * 5 + c.vocab + c.rows) % 23) {
    case 1: return with_masks;
    case 3: return confident;
    case 7: return masked_target;
    case 11: return with_nan;
    case 13: return with_infinity;
    case 17: return all_masked;
    case 19: return only_target;
    case 21: return exact && c.dtype == DType::fp32 ? far_off : plain;
    default: return plain;
  }
}

std::int64_t target_of(const Case& c, std::int64_t row) {
  if (c.rows > 3 && row % 9 == 4) return -100;
  if (c.rows > 3 && row % 32 == 6) return row % 64 == 6 ? c.vocab : -1;
  return row % 5 == 0 ? c.vocab - 1 : row % 5 == 1 ? 0 : (row * 7919 + 31) % c.vocab;
}
bool counts(const Case& c, std::int64_t row) {
  const std::int64_t y = target_of(c, row);
  return y >= 0 && y < c.vocab;
}

std::vector<float> logits_of(const Case& c, std::int64_t row) {
  std::vector<float> z(c.vocab + c.at.padding, std::numeric_limits<float>::quiet_NaN());
  auto state = static_cast<std::uint32_t>(row * 2654435761u + static_cast<std::uint32_t>(c.vocab) + 1u);
  for (std::int64_t j = 0; j < c.vocab; ++j) {
    state = state * 1664525u + 1013904223u;
    z[j] = static_cast<float>(static_cast<double>(state >> 8) * (12.0 / (1 << 24)) - 6);
  }
  const float masked = -std::numeric_limits<float>::infinity();
  const std::int64_t y = counts(c, row) ? target_of(c, row) : 0, other = (y + c.vocab / 2) % c.vocab;
  switch (kind_of(c, row)) {
    case plain: break;
    case with_masks:
      for (std::int64_t j = 0; j < c.vocab; ++j) {
        if (j != y && (j < c.vocab / 3 || j % 5 == 0)) z[j] = masked;
      }
      break;
    case confident: z[y] = 20; break;
    case masked_target: z[y] = masked; break;
    case with_nan: z[other] = std::numeric_limits<float>::quiet_NaN(); break;
    case with_infinity: z[other] = std::numeric_limits<float>::infinity(); break;
    case all_masked: std::fill(z.begin(), z.begin() + c.vocab, masked); break;
    case only_target:
      for (std::int64_t j = 0; j < c.vocab; ++j) z[j] = j == y ? 3 : masked;
      break;
    case far_off:
      for (std::int64_t j = 0; j < c.vocab; ++j) z[j] += 1 << 20;
      break;
  }
  return z;
}

struct Result {
  Buffer grad, loss, lse, logprob, entropy, argmax;
  LossSumsData sums;
  ErrorWord errors;
};

Result run(const Case& c) {
  const Context context = test_context();
  const std::int64_t columns = c.vocab + c.at.padding;
  Buffer logits(c.dtype, Shape{c.rows, columns}, columns + c.at.gap, c.at.logits_offset);
  Buffer target(c.rows % 2 ? DType::int32 : DType::int64, Shape{c.rows});
  for (std::int64_t i = 0; i < c.rows; ++i) {
    logits.write_row(i, logits_of(c, i));
    target.set_index(0, i, target_of(c, i));
  }
  const Buffer before = logits;
  Buffer class_weights(DType::fp32, Shape{c.vocab}), row_weights(DType::fp32, Shape{c.rows});
  class_weights.fill([](auto, std::int64_t j) { return 0.25 * static_cast<double>(1 + j % 7); });
  row_weights.fill([](auto, std::int64_t j) { return 0.5 * static_cast<double>(1 + j % 4); });
  const bool places_grad = c.operation == out_of_place || c.operation == selective;
  Result r;
  r.grad = Buffer(c.dtype, Shape{c.rows, places_grad ? columns : 0}, columns + c.at.grad_gap, c.at.grad_offset);
  for (Buffer* out : {&r.loss, &r.lse, &r.logprob, &r.entropy}) *out = Buffer(DType::fp32, Shape{c.rows});
  r.argmax = Buffer(DType::int32, Shape{c.rows});
  Errors errors;
  Sums sums(context);

  if (c.operation == selective || c.operation == selective_in_place) {
    loss::SelectiveLogSoftmaxOptions options;
    options.vocab = c.vocab;
    options.softcap = c.options.softcap;
    options.logit_scale = c.options.logit_scale;
    options.errors = errors.on_device();
    loss::selective_log_softmax(context, logits, target, r.logprob, options, r.lse);
    const Tensor grad = places_grad ? r.grad.tensor() : logits.tensor();
    loss::selective_log_softmax_backward(context, row_weights, target, logits, r.lse, grad, options);
  } else {
    loss::CrossEntropyOptions options = c.options;
    if (c.class_weights) options.class_weights = class_weights;
    if (c.row_weights) options.row_weights = row_weights;
    Scratch scratch(loss::cross_entropy_workspace_bytes(context, c.rows));
    loss::RowOutputs outputs;
    if (c.keep) outputs = {r.loss, r.lse, r.logprob, r.entropy, r.argmax};
    const Tensor grad = c.operation == loss_alone ? Tensor() : places_grad ? r.grad.tensor() : logits.tensor();
    loss::cross_entropy(context, logits, target, grad, options, scratch.workspace, sums.sums, outputs, c.vocab);
    CHECK(scratch.guards_intact());
  }
  r.sums = sums.data();
  r.errors = errors.read();
  CHECK(logits.guards_intact());
  if (places_grad || c.operation == loss_alone) CHECK(logits.same_bits(before));
  if (places_grad) CHECK(r.grad.guards_intact());
  if (c.operation == in_place || c.operation == selective_in_place) r.grad = std::move(logits);
  return r;
}

bool agree(double got, double want, double tolerance) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) == std::isnan(got);
  return got == want || std::fabs(got - want) <= tolerance;
}

void check_value(const char* name, double got, double want, double tolerance) {
  if (agree(got, want, tolerance)) return;
  CAPTURE(std::string(name));
  CAPTURE(got);
  CHECK(got == want);
}

void check_per_row(const char* name, const Buffer& got, const Buffer& want, double relative) {
  for (std::int64_t i = 0; i < got.elements(); ++i) {
    CAPTURE(i);
    check_value(name, got[i], want[i], relative * (1 + std::fabs(want[i])));
  }
}

// What fp32 may lose in a gradient of the row: relative to it, where the terms of a smoothed or a target's gradient
// cancel relative to those, and the rounding to 16 bits.
struct GradientTolerance {
  DType dtype;
  double others, target;

  GradientTolerance(const Case& c, double weight)
      : dtype(c.dtype),
        others(weight * (1e-6 * c.options.label_smoothing / static_cast<double>(c.vocab) + 1e-12)),
        target(weight * (c.options.label_smoothing > 0 || c.options.z_loss_multiplier > 0 ? 5e-7 : 1e-12)) {}
  double of(double want, bool is_target) const {
    const double rounding = dtype == DType::fp32 || !std::isfinite(want) ? 0 : ulp(dtype, want);
    return 3e-5 * std::fabs(want) + (is_target ? target : others) + rounding;
  }
};

void check_gradient_row(const Case& c, std::int64_t row, const std::vector<float>& got, const std::vector<double>& want,
                        double weight) {
  const GradientTolerance tolerance(c, weight);
  const std::int64_t y = target_of(c, row);
  std::int64_t wrong = 0, first = -1;
  for (std::int64_t j = 0; j < c.vocab; ++j) {
    if (agree(got[j], want[j], tolerance.of(want[j], j == y))) continue;
    if (wrong++ == 0) first = j;
  }
  for (std::int64_t j = c.vocab; j < c.vocab + c.at.padding; ++j) wrong += got[j] != 0;
  if (wrong == 0) return;
  CAPTURE(row);
  CAPTURE(kind_of(c, row));
  CAPTURE(y);
  CAPTURE(first);
  CAPTURE(got[first < 0 ? c.vocab : first]);
  CAPTURE(want[first < 0 ? 0 : first]);
  CHECK(wrong == 0);
}

double weight_of(const Case& c, std::int64_t row) {
  const bool is_selective = c.operation == selective || c.operation == selective_in_place;
  const double by_row = 0.5 * static_cast<double>(1 + row % 4);
  if (is_selective) return by_row;
  return (c.class_weights ? 0.25 * static_cast<double>(1 + target_of(c, row) % 7) : 1) * (c.row_weights ? by_row : 1);
}

// The first few plain rows that count, in fp64.
void check_against_fp64(const Case& c, const Result& got) {
  double denominator = 0;
  for (std::int64_t i = 0; i < c.rows; ++i) denominator += counts(c, i) ? weight_of(c, i) : 0;
  const bool is_selective = c.operation == selective || c.operation == selective_in_place;
  std::int64_t checked = 0;
  for (std::int64_t i = c.rows - 1; i >= 0 && checked < 2; --i) {
    if (!counts(c, i) || kind_of(c, i) > confident) continue;
    ++checked;
    Buffer rounded(c.dtype, Shape{1, c.vocab});
    std::vector<float> z = logits_of(c, i), grad;
    z.resize(c.vocab);
    rounded.write_row(0, z);
    reference::CrossEntropyOptions options{-100, c.options.label_smoothing, c.options.z_loss_multiplier,
                                           c.options.softcap, c.options.logit_scale};
    if (is_selective) options.label_smoothing = options.z_loss_multiplier = 0;
    auto want = reference::cross_entropy_row(rounded.row(0, c.vocab), target_of(c, i), options);
    const double weight = weight_of(c, i);
    double scale = is_selective ? -weight : weight;
    if (!is_selective && c.options.reduction == loss::Reduction::mean) scale /= denominator;
    if (is_selective || c.keep) {
      check_value("lse", got.lse[i], want.lse, 1e-5);
      check_value("target_logprob", got.logprob[i], want.target_logprob, 1e-5);
    }
    if (!is_selective && c.keep) {
      check_value("loss", got.loss[i], weight * want.loss, 1e-5 * (1 + weight * want.loss));
      check_value("entropy", got.entropy[i], want.entropy, 1e-5 * (1 + want.entropy));
      CHECK(got.argmax[i] == want.argmax);
    }
    if (got.grad.elements() == 0) continue;
    for (double& dz : want.grad) dz *= scale;
    got.grad.read_row(i, grad);
    check_gradient_row(c, i, grad, want.grad, std::fabs(scale));
  }
}

void check_against_cpu(const Case& c, const Result& got) {
  const BackendScope host;
  const Result want = run(c);
  const bool is_selective = c.operation == selective || c.operation == selective_in_place;
  if (is_selective || c.keep) {
    check_per_row("lse", got.lse, want.lse, 1e-5);
    check_per_row("target_logprob", got.logprob, want.logprob, 1e-5);
    check_per_row("loss", got.loss, want.loss, 1e-5);
    check_per_row("entropy", got.entropy, want.entropy, 2e-5);
  }
  for (std::int64_t i = 0; c.keep && !is_selective && i < c.rows; ++i) {
    CAPTURE(i);
    if (kind_of(c, i) != with_nan) CHECK(got.argmax[i] == want.argmax[i]);
  }
  CHECK(got.sums.n_valid == want.sums.n_valid);
  CHECK(got.sums.nonfinite_rows == want.sums.nonfinite_rows);
  check_value("ce_sum", got.sums.ce_sum, want.sums.ce_sum, 1e-5 * std::fabs(want.sums.ce_sum));
  check_value("z_sum", got.sums.z_sum, want.sums.z_sum, 1e-5 * std::fabs(want.sums.z_sum));
  check_value("weight_sum", got.sums.weight_sum, want.sums.weight_sum, 1e-6 * want.sums.weight_sum);
  CHECK(std::memcmp(&got.sums.errors, &want.sums.errors, sizeof got.sums.errors) == 0);
  CHECK(std::memcmp(&got.errors, &want.errors, sizeof got.errors) == 0);
  if (got.grad.elements() == 0) return;
  std::vector<float> grad, exact;
  for (std::int64_t i = 0; i < c.rows; ++i) {
    got.grad.read_row(i, grad);
    want.grad.read_row(i, exact);
    check_gradient_row(c, i, grad, std::vector<double>(exact.begin(), exact.end()), counts(c, i) ? weight_of(c, i) : 0);
  }
}

void check_case(const Case& c) {
  INFO("N " << c.rows << ", V " << c.vocab << ", " << std::string(name_of(c.dtype)) << ", operation " << c.operation
            << ", offsets " << c.at.logits_offset << " and " << c.at.grad_offset << ", padding " << c.at.padding
            << ", gaps " << c.at.gap << " and " << c.at.grad_gap << ", smoothing " << c.options.label_smoothing
            << ", z-loss " << c.options.z_loss_multiplier << ", softcap " << c.options.softcap << ", scale "
            << c.options.logit_scale << ", weights " << c.class_weights << c.row_weights << ", outputs " << c.keep);
  const Result got = run(c);
  check_against_cpu(c, got);
  check_against_fp64(c, got);
}

}  // namespace

TEST_CASE("row operations on CUDA: long rows, every placement and option" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const BackendScope scope(device_context());
  const std::vector<Choice> cases = all_pairs(levels, [](const Choice& choice) {
    return row_counts[choice[rows_factor]] * vocabs[choice[vocab_factor]] <= most_logits;
  });
  MESSAGE(cases.size() << " cases");
  for (const Choice& choice : cases) check_case(case_of(choice));
}

TEST_CASE("row operations on CUDA: more rows of a large vocabulary than multiprocessors" *
          doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const BackendScope scope(device_context());
  Case c{133, 128256, DType::bf16, in_place, placements[0], {}};
  check_case(c);
  c.operation = selective;
  c.at = placements[4];
  check_case(c);
  c.dtype = DType::fp32;
  c.vocab = 50257;
  c.rows = 265;
  c.operation = out_of_place;
  check_case(c);
}

TEST_CASE("row operations on CUDA: bits do not depend on where rows lie" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const BackendScope scope(device_context());
  for (const DType dtype : dtypes) {
    for (const std::int64_t vocab : {2049, 16384, 50257, 131072}) {
      Case c{5, vocab, dtype, out_of_place, placements[0], {}};
      c.keep = true;
      const Result want = run(c);
      for (const Placement& at : placements) {
        c.at = at;
        c.at.padding = 0;
        for (const Operation operation : {in_place, out_of_place}) {
          c.operation = operation;
          const Result got = run(c);
          CAPTURE(vocab);
          CAPTURE(at.logits_offset);
          CAPTURE(at.grad_offset);
          CHECK(got.grad.same_bits(want.grad));
          CHECK(got.loss.same_bits(want.loss));
          CHECK(got.entropy.same_bits(want.entropy));
          CHECK(std::memcmp(&got.sums, &want.sums, sizeof got.sums) == 0);
        }
      }
    }
  }
}
