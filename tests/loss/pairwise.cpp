// Every operation over sizes and options that cover each pair, against fp64. What takes more than a moment is in the
// suite "slow". On CUDA also the largest vocabularies and more rows.
#include <tests/loss/all_pairs.h>
#include <tests/loss/row_call.h>
#include <tests/loss/selective_problem.h>

#include <atomic>
#include <string>
#include <thread>

using namespace greyhound;
using namespace greyhound::test;

namespace {

const std::vector<std::int64_t> vocabs{1,    2,    5,    7,     8,     9,      31,     33,     127,
                                       1023, 1025, 8003, 50257, 65537, 128256, 152064, 200064, 262144};
const std::vector<std::int64_t> row_counts{0, 1, 3, 7, 257, 4096};
const std::vector<std::int64_t> hiddens{1, 3, 8, 64, 100, 768};
const std::vector<DType> dtypes{DType::fp32, DType::bf16, DType::fp16};
enum Operation {
  linear_cross_entropy,
  linear_selective,
  linear_squares,
  rows_cross_entropy,
  rows_selective,
  operations
};

enum Factor {
  vocab_factor,
  rows_factor,
  hidden_factor,
  dtype_factor,
  operation_factor,
  padding_factor,
  offset_factor,
  chunks_factor,
  reduction_factor,
  smoothing_factor,
  z_loss_factor,
  softcap_factor,
  weights_factor,
  bias_factor,
  head_factor,
  indices_factor,
  accumulate_factor,
};
// The last vocabularies and the last row count are for lists of their own.
constexpr int every_vocab = 14, every_row_count = 5;
const std::vector<int> levels{every_vocab, every_row_count, 6, 3, operations, 2, 2, 3, 3, 2, 2, 2, 3, 2, 3, 4, 2};

struct Case {
  LinearProblem p;
  Operation operation;
  loss::PlanOptions plan;
  loss::CrossEntropyOptions options;
  loss::SelectiveLogSoftmaxOptions selective;
  Wanted wanted;
  std::int64_t per_row;
  bool by_class, by_row;
};

Case case_of(const Choice& choice) {
  Case c;
  c.p = {row_counts[choice[rows_factor]], hiddens[choice[hidden_factor]], vocabs[choice[vocab_factor]],
         dtypes[choice[dtype_factor]]};
  c.operation = static_cast<Operation>(choice[operation_factor]);
  if (choice[padding_factor]) c.p.padded_vocab = c.p.vocab + 3;
  c.p.offset = choice[offset_factor];
  c.p.with_bias = choice[bias_factor] != 0;
  const std::int64_t chunks[] = {0, 2, 100};
  c.plan.chunk_rows = chunks[choice[chunks_factor]];
  if (choice[head_factor] > 0) c.plan.grad_weight_dtype = c.p.dtype;
  if (choice[head_factor] > 1) c.plan.grad_weight_accum_dtype = loss::AccumDType::weight;
  c.options.reduction = static_cast<loss::Reduction>(choice[reduction_factor]);
  c.options.label_smoothing = choice[smoothing_factor] ? 0.1f : 0.0f;
  c.options.z_loss_multiplier = choice[z_loss_factor] ? 1e-2f : 0.0f;
  c.options.softcap = c.selective.softcap = choice[softcap_factor] ? 4.0f : 0.0f;
  c.options.logit_scale = c.selective.logit_scale = choice[softcap_factor] ? 0.8f : 1.0f;
  c.by_class = choice[weights_factor] == 1;
  c.by_row = choice[weights_factor] == 2;
  const std::int64_t per_row[] = {0, 1, 2, 5};
  c.per_row = per_row[choice[indices_factor]];
  c.wanted = {true, true, c.p.with_bias, choice[accumulate_factor] != 0, choice[accumulate_factor] ? 2.0 : 0.0};
  return c;
}

std::int64_t cost(const LinearProblem& p) { return p.rows * p.hidden * p.vocab; }
constexpr std::int64_t quick = 2'000'000, most = 1'000'000'000;

// A loss of the caller's: sum of z^2 / 2V per row.
void check_squares(const Case& c, const LinearData& data) {
  LinearData copy = data;
  const double vocab = static_cast<double>(c.p.vocab);
  const auto of_tile = [&](const loss::LogitsTile& tile) {
    dispatch(tile.logits.dtype, "test", [&](auto tag) {
      using T = typename decltype(tag)::type;
      for (std::int64_t i = 0; i < tile.logits.rows(); ++i) {
        T* z = tile.logits.row<T>(i);
        double sum = 0;
        for (std::int64_t j = 0; j < tile.logits.columns(); ++j) {
          const double value = to_float(z[j]);
          sum += value * value / (2 * vocab);
          z[j] = from_float<T>(static_cast<float>(value));
        }
        tile.row_loss.as<float>()[i] = static_cast<float>(sum);
      }
    });
  };
  const loss::RowLoss squares = [&](const Context& context, const loss::LogitsTile& tile) {
    on_host(context, tile, of_tile);
  };
  const LinearResult got =
      run_planned(c.p, c.plan, c.wanted, 2,
                  [&](const Context& context, const loss::Plan& plan, const loss::LinearGradients& gradients,
                      Workspace& workspace, loss::LossSums& sums, LinearResult&) {
                    loss::chunked_linear_loss(context, plan,
                                              {copy.inputs, copy.weight, c.p.with_bias ? copy.bias.tensor() : Tensor()},
                                              squares, gradients, workspace, sums);
                  });
  double sum = 0;
  const auto want = projection_gradients(projection_of(c.p, data), [&](std::int64_t, const std::vector<double>& z) {
    for (const double value : z) sum += value * value / (2 * vocab);
    return z;
  });
  CHECK(std::fabs(got.sums.ce_sum - sum) <= product_tolerance(c.p.dtype) * (sum + 1e-3));
  CHECK(got.sums.n_valid == c.p.rows);
  check_gradients(c.p, got, want, c.wanted, product_tolerance(c.p.dtype));
}

// Row operations on logits that are given.
void check_rows(const Case& c) {
  const LinearProblem& p = c.p;
  Normal normal(21);
  Buffer logits(p.dtype, Shape{p.rows, p.stored()}, p.stored() + 2, p.offset);
  logits.fill([&](auto, std::int64_t j) { return j < p.vocab ? 4 * normal() : not_a_number; });
  const auto compare = [&](const Buffer& got, std::int64_t i, const std::vector<double>& want,
                           const std::vector<double>& bound) {
    std::int64_t wrong = 0;
    for (std::int64_t j = 0; j < p.vocab; ++j) {
      const double rounding = p.dtype == DType::fp32 ? 0 : ulp(p.dtype, want[j]);
      if (!(std::fabs(got.at(i, j) - want[j]) <= 1e-5 * bound[j] + rounding + 1e-12)) ++wrong;
    }
    for (std::int64_t j = p.vocab; j < p.stored(); ++j) wrong += got.at(i, j) != 0;
    CHECK(wrong == 0);
  };
  if (c.operation == rows_selective) {
    Selection selection(p.rows, c.per_row, p.vocab, p.dtype);
    Buffer out(DType::fp32, selection.index.tensor().shape), lse(DType::fp32, Shape{p.rows}), grad = logits;
    loss::SelectiveLogSoftmaxOptions options = c.selective;
    options.vocab = p.vocab;
    const Context context = test_context(2);
    loss::selective_log_softmax(context, logits, selection.index, out, options, lse);
    loss::selective_log_softmax_backward(context, selection.grad_out, selection.index, logits, lse, grad, options);
    CHECK(grad.guards_intact());
    for (std::int64_t i = 0; i < p.rows; ++i) {
      const auto want = reference::selective_log_softmax_row(logits.row(i, p.vocab), selection.indices_of(i),
                                                             selection.grads_of(i), reference_options(options));
      for (std::int64_t k = 0; k < selection.count(); ++k) {
        const double exact = want.logprob[k];
        CHECK(std::fabs(selection.of(out, i, k) - exact) <= 3e-6 * (1 + std::fabs(exact)));
      }
      compare(grad, i, want.grad, want.bound);
    }
    return;
  }
  LinearData data({p.rows, 1, p.vocab});
  loss::CrossEntropyOptions options = c.options;
  options.reduction = loss::Reduction::sum;
  const RowCallResult got = run_cross_entropy(logits, data.targets, options, p.vocab);
  for (std::int64_t i = 0; i < p.rows; ++i) {
    const std::int64_t y = data.targets.host().as<std::int64_t>()[i];
    if (y < 0) {
      for (std::int64_t j = 0; j < p.stored(); ++j) REQUIRE(got.grad.at(i, j) == 0);
      continue;
    }
    const auto want = reference::cross_entropy_row(
        logits.row(i, p.vocab), y,
        {-100, options.label_smoothing, options.z_loss_multiplier, options.softcap, options.logit_scale});
    CHECK(std::fabs(got.loss[i] - want.loss) <= 1e-5 * (std::fabs(want.loss) + 1e-3));
    std::vector<double> bound = want.grad;  // with smoothing, terms cancel: relative to them
    const double term = options.label_smoothing / static_cast<double>(p.vocab);
    for (double& value : bound) value = std::fabs(value) + 2 * term + (p.vocab < 10 ? 0.1 : 0);
    compare(got.grad, i, want.grad, bound);
  }
}

void check_case(const Case& given) {
  Case c = given;
  const LinearProblem& p = c.p;
  INFO("N " << p.rows << ", D " << p.hidden << ", V " << p.vocab << ", P " << p.stored() << ", offset " << p.offset
            << ", " << std::string(name_of(p.dtype)) << ", operation " << c.operation << ", K " << c.per_row
            << ", chunks of " << c.plan.chunk_rows << ", bias " << p.with_bias);
  if (c.operation == rows_cross_entropy || c.operation == rows_selective) return check_rows(c);
  const LinearData data(p);
  if (c.operation == linear_squares) return check_squares(c, data);
  if (c.operation == linear_selective) {
    const Selection selection(p.rows, c.per_row, p.vocab);
    return check_selective(p, data, selection, run_selective(p, data, selection, c.selective, c.plan, c.wanted),
                           c.selective, c.wanted);
  }
  Buffer class_weights(DType::fp32, Shape{p.vocab}), row_weights(DType::fp32, Shape{p.rows});
  Buffer upstream(DType::fp32, Shape{p.rows});
  class_weights.fill([](auto, std::int64_t j) { return 0.25 * static_cast<double>(1 + j % 7); });
  row_weights.fill([](auto, std::int64_t j) { return 0.5 * static_cast<double>(1 + j % 4); });
  upstream.fill([](auto, std::int64_t j) { return static_cast<double>(j % 3) - 0.5; });
  if (c.by_class) c.options.class_weights = class_weights;
  if (c.by_row && p.rows > 0) c.options.row_weights = row_weights;
  if (c.options.reduction == loss::Reduction::none && p.rows > 0) c.options.upstream = upstream;
  // The denominator of the mean is given, so that the reference is computed once.
  Buffer denominator = vector(DType::fp32, {5});
  if (c.options.reduction == loss::Reduction::mean) c.options.denominator = denominator;
  check_linear(p, run_linear(p, data, c.options, c.plan, c.wanted), reference_result(p, data, c.options), c.wanted);
}

std::vector<Choice> cases() {
  return all_pairs(levels, [](const Choice& choice) { return cost(case_of(choice).p) <= most; });
}

// The nearest sizes that fp64 on the host can follow.
Case within_reach(Case c) {
  LinearProblem& p = c.p;
  p.rows = std::min(p.rows, 8'000'000 / p.vocab);
  p.hidden = std::min(p.hidden, std::max<std::int64_t>(1, 5'000'000 / p.vocab));
  p.hidden = std::min(p.hidden, std::max<std::int64_t>(1, 80'000'000 / (p.vocab * std::max<std::int64_t>(1, p.rows))));
  // So many rows hold large logits, whose rounding to 16 bits shows in the probabilities; a sum over so many chunks
  // stalls in 16 bits; and the gradients of the caller's own loss do not shrink with the vocabulary.
  if (p.rows > 1000) p.weight_scale = 0.5;
  if (p.rows > 1000 && c.plan.grad_weight_accum_dtype == loss::AccumDType::weight) c.plan.chunk_rows = 1000;
  if (p.vocab > 65537 && p.dtype == DType::fp16 && c.operation == linear_squares) {
    p.dtype = DType::bf16;
    if (c.plan.grad_weight_dtype == DType::fp16) c.plan.grad_weight_dtype = DType::bf16;
  }
  return c;
}

// The largest vocabularies; and 4096 rows.
std::vector<Case> large_cases() {
  const auto any = [](const Choice&) { return true; };
  std::vector<int> large = levels, many = levels;
  large[vocab_factor] = static_cast<int>(vocabs.size()) - every_vocab;
  many[vocab_factor] = 11;
  many[rows_factor] = 1;
  std::vector<Case> all;
  for (Choice choice : all_pairs(large, any)) {
    choice[vocab_factor] += every_vocab;
    all.push_back(within_reach(case_of(choice)));
  }
  for (Choice choice : all_pairs(many, any)) {
    choice[rows_factor] += every_row_count;
    all.push_back(within_reach(case_of(choice)));
  }
  return all;
}

// On CUDA side by side: each host thread has a context of its own, and fp64 on the host takes most of the time.
void check_all(const std::vector<Case>& all) {
  if (BackendScope::device() == nullptr) {
    for (const Case& c : all) check_case(c);
    return;
  }
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    const BackendScope scope(device_context());
    try {
      for (std::size_t i = next++; i < all.size(); i = next++) check_case(all[i]);
    } catch (const std::exception& error) {
      FAIL_CHECK(std::string(error.what()));
    } catch (...) {
      FAIL_CHECK("a failed requirement ended the cases of this thread");
    }
  };
  std::vector<std::thread> threads;
  const unsigned count = std::clamp(std::thread::hardware_concurrency(), 1u, 12u);
  for (unsigned i = 0; i < count; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
}

void check_cases(bool slow) {
  std::vector<Case> all;
  for (const Choice& choice : cases()) {
    const Case c = case_of(choice);
    if ((cost(c.p) > quick) == slow) all.push_back(c);
  }
  CHECK(all.size() > 10);
  check_all(all);
}

}  // namespace

TEST_CASE("losses: the list of cases has every pair of sizes and options") {
  const std::vector<Choice> rows = cases();
  MESSAGE(rows.size() << " cases");
  std::int64_t missing = 0;
  for (std::size_t f = 0; f < levels.size(); ++f) {
    for (std::size_t g = f + 1; g < levels.size(); ++g) {
      for (int a = 0; a < levels[f]; ++a) {
        for (int b = 0; b < levels[g]; ++b) {
          missing += std::none_of(rows.begin(), rows.end(), [&](const Choice& r) { return r[f] == a && r[g] == b; });
        }
      }
    }
  }
  CHECK(missing == 0);
}

TEST_CASE_ON_EACH_BACKEND("losses: pairs of sizes and options against fp64, small ones") { check_cases(false); }

SLOW_TEST_CASE_ON_EACH_BACKEND("losses: pairs of sizes and options against fp64") { check_cases(true); }

TEST_CASE("losses: pairs of large vocabularies, many rows and options against fp64 on CUDA" *
          doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const BackendScope scope(device_context());
  const std::vector<Case> all = large_cases();
  MESSAGE(all.size() << " cases");
  check_all(all);
}
