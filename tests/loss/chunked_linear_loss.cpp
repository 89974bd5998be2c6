#include <tests/loss/linear_problem.h>

#include <stdexcept>

using namespace greyhound;
using namespace greyhound::test;

namespace {

// (a_i / 2V) sum_j z_j^2 with a factor per row, to see that rows are told apart.
double row_factor(std::int64_t row) { return 1 + 0.25 * static_cast<double>(row % 5); }

loss::RowLoss squares(std::int64_t vocab, bool expect_gradients = true) {
  const auto of_tile = [=](const loss::LogitsTile& tile) {
    dispatch(tile.logits.dtype, "test", [&](auto tag) {
      using T = typename decltype(tag)::type;
      for (std::int64_t i = 0; i < tile.logits.rows(); ++i) {
        T* z = tile.logits.row<T>(i);
        const double a = row_factor(tile.first_row + i) / static_cast<double>(vocab);
        double sum = 0;
        for (std::int64_t j = 0; j < vocab; ++j) {
          const double value = to_float(z[j]);
          sum += value * value;
          if (tile.gradients) z[j] = from_float<T>(static_cast<float>(a * value));
        }
        CHECK_FALSE(std::isnan(sum));  // no padding, nothing stale
        tile.row_loss.as<float>()[i] = static_cast<float>(a * sum / 2);
      }
    });
  };
  return [=](const Context& context, const loss::LogitsTile& tile) {
    CHECK(tile.gradients == expect_gradients);
    CHECK(tile.logits.columns() == vocab);
    CHECK(tile.row_loss.elements() == tile.logits.rows());
    on_host(context, tile, of_tile);
  };
}

LinearResult run(const LinearProblem& p, LinearData data, const loss::PlanOptions& plan_options, const Wanted& wanted,
                 int threads = 2) {
  const bool gradients = wanted.input || wanted.weight || wanted.bias;
  return run_planned(p, plan_options, wanted, threads,
                     [&](const Context& context, const loss::Plan& plan, const loss::LinearGradients& to,
                         Workspace& workspace, loss::LossSums& sums, LinearResult&) {
                       loss::chunked_linear_loss(
                           context, plan, {data.inputs, data.weight, p.with_bias ? data.bias.tensor() : Tensor()},
                           squares(p.vocab, gradients), to, workspace, sums);
                     });
}

}  // namespace

TEST_CASE_ON_EACH_BACKEND("chunked_linear_loss: a loss of the caller's against fp64; padding never reaches it") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const LinearProblem& p : {LinearProblem{5, 3, 7, dtype}, LinearProblem{13, 100, 1031, dtype, 1040},
                                   LinearProblem{33, 17, 129, dtype, 136, true}, LinearProblem{0, 4, 6, dtype}}) {
      const LinearData data(p);
      double loss_sum = 0;
      const auto want =
          projection_gradients(projection_of(p, data), [&](std::int64_t i, const std::vector<double>& logits) {
            std::vector<double> grad = logits;
            for (double& z : grad) {
              loss_sum += row_factor(i) * z * z / (2.0 * p.vocab);
              z *= row_factor(i) / p.vocab;
            }
            return grad;
          });
      for (const std::int64_t chunk_rows : {1, 4, 100}) {
        for (const DType grad_dtype : {DType::fp32, dtype}) {
          for (const bool accumulate : {false, true}) {
            if (accumulate && chunk_rows != 4) continue;
            const Wanted wanted{true, true, true, accumulate, accumulate ? 7.0 : 0.0};
            loss::PlanOptions options = chunks_of(chunk_rows);
            options.grad_weight_dtype = grad_dtype;
            CAPTURE(chunk_rows);
            CAPTURE(p.vocab);
            const LinearResult got = run(p, data, options, wanted);
            check_gradients(p, got, want, wanted, product_tolerance(dtype));
            CHECK(std::fabs(got.sums.ce_sum - loss_sum) <= product_tolerance(dtype) * loss_sum);
            CHECK(got.sums.z_sum == 0);
            CHECK(got.sums.n_valid == p.rows);
            CHECK(got.sums.weight_sum == p.rows);
            CHECK(got.sums.nonfinite_rows == 0);
            CHECK(got.sums.errors.count == 0);
          }
        }
      }
    }
  }
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_loss: frozen sides, no gradient, and any number of threads") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const LinearProblem p{21, 24, 65, dtype};
    const LinearData data(p);
    const LinearResult full = run(p, data, chunks_of(8), {});
    CHECK(run(p, data, chunks_of(8), {true, false}).grad_input.same_bits(full.grad_input));
    CHECK(run(p, data, chunks_of(8), {false, true}).grad_weight.same_bits(full.grad_weight));
    CHECK(run(p, data, chunks_of(8), {false, false}).sums.ce_sum == full.sums.ce_sum);
    for (const int threads : {1, 4}) {
      const LinearResult again = run(p, data, chunks_of(8), {}, threads);
      CHECK(again.grad_weight.same_bits(full.grad_weight));
      CHECK(again.grad_input.same_bits(full.grad_input));
      CHECK(again.sums.ce_sum == full.sums.ce_sum);
    }
  }
}

TEST_CASE_ON_EACH_BACKEND(
    "chunked_linear_loss: row losses are summed once, in fp64, and rows that are not finite are counted") {
  const LinearProblem p{5, 2, 3};
  LinearData data(p);
  const Context context = test_context(1);
  const float losses[] = {16777216, 1, 1, not_a_number, 1};  // 2^24: in fp32, adding 1 changes nothing
  double sums_of[2] = {};
  for (const bool with_nan : {false, true}) {
    for (const std::int64_t chunk_rows : {1, 2, 5}) {
      const loss::Plan plan = loss::plan_chunked_linear_loss(context, p.shape(), chunks_of(chunk_rows));
      Scratch scratch(plan.workspace_bytes);
      Sums sums(context);
      std::int64_t rows_seen = 0;
      const loss::RowLoss row_loss = [&](const Context& in, const loss::LogitsTile& tile) {
        CHECK(in.device() == context.device());
        CHECK(tile.first_row == rows_seen);
        rows_seen += tile.logits.rows();
        on_host(in, tile, [&](const loss::LogitsTile& here) {
          for (std::int64_t i = 0; i < here.logits.rows(); ++i) {
            const float value = losses[here.first_row + i];
            here.row_loss.as<float>()[i] = std::isnan(value) && !with_nan ? 1 : value;
          }
        });
      };
      loss::chunked_linear_loss(context, plan, {data.inputs, data.weight, {}}, row_loss, {}, scratch.workspace,
                                sums.sums);
      CHECK(rows_seen == 5);
      CHECK(sums.data().nonfinite_rows == (with_nan ? 1 : 0));
      CHECK(sums.data().n_valid == 5);
      sums_of[with_nan] = sums.data().ce_sum;
    }
    if (!with_nan) CHECK(sums_of[0] == 16777220.0);
  }
  CHECK(std::isnan(sums_of[1]));
}

TEST_CASE_ON_EACH_BACKEND(
    "chunked_linear_loss: an exception in the callback ends the call and leaves everything usable") {
  const LinearProblem p{6, 4, 9};
  LinearData data(p);
  const Context context = test_context(2);
  const loss::Plan plan = loss::plan_chunked_linear_loss(context, p.shape(), chunks_of(2));
  Scratch scratch(plan.workspace_bytes);
  Sums sums(context);
  Buffer grad_input(DType::fp32, Shape{6, 4}), grad_weight(DType::fp32, Shape{9, 4});
  const loss::LinearGradients gradients{loss::overwrite(grad_input), loss::overwrite(grad_weight), {}};
  const loss::RowLoss throwing = [](const Context&, const loss::LogitsTile& tile) {
    if (tile.first_row == 2) throw std::runtime_error("of the callback");
  };
  CHECK_THROWS_WITH_AS(loss::chunked_linear_loss(context, plan, {data.inputs, data.weight, {}}, throwing, gradients,
                                                 scratch.workspace, sums.sums),
                       "of the callback", std::runtime_error);
  CHECK(scratch.workspace.used() == 0);
  CHECK(sums.data().n_valid == 0);
  CHECK(sums.data().ce_sum == 0);
  loss::chunked_linear_loss(context, plan, {data.inputs, data.weight, {}}, squares(9), gradients, scratch.workspace,
                            sums.sums);
  const LinearResult fresh = run(p, data, chunks_of(2), {});
  CHECK(grad_weight.same_bits(fresh.grad_weight));
  CHECK(sums.data().ce_sum == fresh.sums.ce_sum);
  CHECK_THROWS_WITH_AS(loss::chunked_linear_loss(context, plan, {data.inputs, data.weight, {}}, {}, gradients,
                                                 scratch.workspace, sums.sums),
                       doctest::Contains("row_loss"), Error);
}

TEST_CASE_ON_EACH_BACKEND("chunked_linear_loss: a workspace used again, by a call with fewer tokens") {
  const LinearProblem large{20, 24, 65, DType::bf16}, small{6, 24, 65, DType::bf16};
  const Context context = test_context(2);
  loss::PlanOptions options = chunks_of(8);
  options.grad_weight_dtype = DType::bf16;
  const loss::Plan plan = loss::plan_chunked_linear_loss(context, large.shape(), options);
  Scratch used(plan.workspace_bytes), fresh(plan.workspace_bytes);
  const auto call = [&](const LinearProblem& p, Scratch& scratch) {
    LinearData data(p);
    Sums sums(context);
    Buffer grad_weight(DType::bf16, Shape{65, 24});
    loss::chunked_linear_loss(context, plan, {data.inputs, data.weight, {}}, squares(65),
                              {{}, loss::overwrite(grad_weight), {}}, scratch.workspace, sums.sums);
    return std::pair(grad_weight, sums.data().ce_sum);
  };
  call(large, used);
  const auto a = call(small, used), b = call(small, fresh);
  CHECK(a.first.same_bits(b.first));
  CHECK(a.second == b.second);
}
