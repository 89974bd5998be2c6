// Column sums, casts and what else the linear losses need, on CUDA against the CPU.
#include <greyhound/kernels/elementwise.h>
#include <greyhound/kernels/linear_loss.h>
#include <tests/cuda_support.h>

#include <limits>

using namespace greyhound;
using namespace greyhound::cuda_test;

namespace {

// run(context) on both backends.
template <class Run>
void compare(const char* name, double relative, Run&& run) {
  const HostTensor expected = run(Context::cpu()), got = run(device_context());
  check_agree(name, got, expected, relative);
}

HostTensor some_targets(std::int64_t rows, std::int64_t vocab) {
  HostTensor index(DType::int64, {rows});
  for (std::int64_t i = 0; i < rows; ++i) index.set_index(i, i % 3 == 1 ? -100 : i % 5 == 4 ? vocab : i % vocab);
  return index;
}

}  // namespace

TEST_CASE("column_sum on CUDA" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16}) {
    for (std::int64_t rows : {0, 1, 128, 129, 1000}) {
      for (bool accumulate : {false, true}) {
        CAPTURE(rows);
        compare("column_sum", 1e-6, [&](const Context& context) {
          const std::int64_t columns = 131;
          const Placed input(context, HostTensor::random(dtype, {rows, columns}, 5, 0.5, 2, columns + 2, 1));
          const HostTensor blank(DType::fp32, {columns});
          const Placed out(context, accumulate ? HostTensor::random(DType::fp32, {columns}, 6) : blank);
          GuardedWorkspace scratch(context, column_sum_workspace_bytes(context, rows, columns));
          column_sum(context, {input, out, accumulate}, scratch.workspace);
          CHECK(scratch.intact());
          return out.back();
        });
      }
    }
  }
}

TEST_CASE("cast on CUDA" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType from : {DType::fp32, DType::bf16, DType::fp16}) {
    for (DType to : {DType::fp32, DType::bf16, DType::fp16}) {
      const auto run = [&](const Context& context) {
        HostTensor values = HostTensor::random(from, {9, 17}, 7, -70000, 70000, 20, 1);
        values.set(3, std::numeric_limits<double>::infinity());
        values.set(4, 1e-7);
        const Placed input(context, values), out(context, HostTensor(to, {9, 17}, 19, 3));
        cast(context, {input, out});
        return out.back();
      };
      CHECK(run(device_context()).bytes() == run(Context::cpu()).bytes());
    }
  }
}

TEST_CASE("copy_valid_rows on CUDA" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (std::int64_t gap : {0, 3}) {
      const auto run = [&](const Context& context) {
        HostTensor values = HostTensor::random(dtype, {11, 37}, 8, -1, 1, 37 + gap, gap);
        values.set(37, std::numeric_limits<double>::quiet_NaN());  // row 1 is ignored
        const Placed from(context, values), to(context, HostTensor(dtype, {11, 37}, 40)),
            index(context, some_targets(11, 6));
        copy_valid_rows(context, {from, {index, 6, -100}, to});
        return to.back();
      };
      CHECK(run(device_context()).bytes() == run(Context::cpu()).bytes());
    }
  }
}

TEST_CASE("normalize_upstream on CUDA" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const std::int64_t rows = 3000, vocab = 7;
  for (double denominator : {0.0, 2000.0}) {
    for (bool per_row : {false, true}) {
      HostTensor alpha[2], row_upstream[2];
      int side = 0;
      for (const Context& context : {Context::cpu(), device_context()}) {
        const Placed index(context, some_targets(rows, vocab));
        const Placed weights(context, HostTensor::random(DType::fp32, {vocab}, 9, 0.1, 3));
        const Placed upstream(context, HostTensor::random(DType::fp32, {per_row ? rows : 1}, 10, -5, 5));
        const Placed count(context, HostTensor::of(DType::fp32, {denominator}));
        const Placed out(context, HostTensor(DType::fp32, {rows})), factor(context, HostTensor(DType::fp32, {1}));
        normalize_upstream(context, {{index, vocab, -100}, weights, {}, upstream, count, 0.5f, out, factor});
        alpha[side] = factor.back();
        row_upstream[side++] = out.back();
      }
      check_agree("alpha", alpha[1], alpha[0], 1e-6);
      check_agree("row_upstream", row_upstream[1], row_upstream[0], 1e-6);
    }
  }
}

TEST_CASE("tile_column_sum on CUDA" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (bool accumulate : {false, true}) {
      compare("tile_column_sum", 1e-6, [&](const Context& context) {
        const std::int64_t rows = 77, columns = 259;
        const Placed tile(context, HostTensor::random(dtype, {rows, columns}, 11, 0.5, 2, columns + 5, 1));
        const HostTensor blank(DType::fp32, {columns});
        const Placed out(context, accumulate ? HostTensor::random(DType::fp32, {columns}, 12) : blank);
        const Placed factor(context, HostTensor::of(DType::fp32, {0.25}));
        TileColumnSum args;
        args.tile = tile;
        args.out = out;
        args.alpha = 3;
        args.alpha_factor = factor;
        args.accumulate = accumulate;
        tile_column_sum(context, args);
        return out.back();
      });
    }
  }
}
