// GELU, dropout, column sums, casts and what else the linear losses need, on CUDA against the CPU.
#include <greyhound/kernels/elementwise.h>
#include <greyhound/kernels/linear_loss.h>
#include <tests/cuda_support.h>
#include <tests/reference/elementwise.h>

#include <limits>
#include <vector>

using namespace greyhound;
using namespace greyhound::cuda_test;

namespace {

Workspace no_workspace;  // for gelu_backward without a bias

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

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double quiet_nan = std::numeric_limits<double>::quiet_NaN();

struct Layout {
  std::int64_t rows, columns, gap, offset;
};

// Every row number with every row length, dense and aligned; then with gaps and off 16 bytes; then more elements than
// a thread's first turn, dense.
std::vector<Layout> layouts() {
  std::vector<Layout> all = {{5, 40001, 0, 0}, {1, 65536, 0, 0}, {3, 65537, 0, 1}, {0, 5, 0, 0}};
  for (std::int64_t rows : {1, 2, 3, 127}) {
    for (std::int64_t columns : {1, 3, 17, 64, 100, 768, 1600}) {
      all.push_back({rows, columns, 0, 0});
      all.push_back({rows, columns, 8, 0});
      all.push_back({rows, columns, 3, 1});
    }
  }
  return all;
}

// For sums over rows: turns of 8 rows, blocks of 128 and more; one and several blocks of columns; rows that do not
// start at 16 bytes.
std::vector<Layout> summed_layouts() {
  std::vector<Layout> all = {{40011, 40, 0, 0}, {32769, 8, 8, 0}, {70000, 3, 0, 0}, {300, 768, 0, 0}, {65, 3072, 8, 0}};
  for (std::int64_t rows : {0, 1, 7, 8, 63, 64, 65, 128, 129, 1000}) {
    all.push_back({rows, 131, 2, 1});
    all.push_back({rows, 264, 0, 0});
    all.push_back({rows, 1, 0, 0});
  }
  return all;
}

HostTensor random(DType dtype, const Layout& at, std::uint64_t seed, double low = -4, double high = 4) {
  return HostTensor::random(dtype, {at.rows, at.columns}, seed, low, high, at.columns + at.gap, at.offset);
}
HostTensor blank(DType dtype, const Layout& at) {
  return HostTensor(dtype, {at.rows, at.columns}, at.columns + at.gap, at.offset);
}

}  // namespace

TEST_CASE("gelu on CUDA: every bf16 value against fp64" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Context context = device_context();
  std::vector<double> x;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = to_float(bf16{static_cast<std::uint16_t>(bits)});
    if (std::fabs(value) <= 1e30f) x.push_back(value);
  }
  const auto n = static_cast<std::int64_t>(x.size());
  for (DType dtype : {DType::bf16, DType::fp32}) {
    HostTensor input(dtype, {n}), gelu(DType::fp32, {n}), slope(DType::fp32, {n}), ones(dtype, {n});
    for (std::int64_t i = 0; i < n; ++i) {
      const double value = x[static_cast<std::size_t>(i)];
      input.set(i, value);
      ones.set(i, 1.5);
      gelu.set(i, reference::gelu(value));
      slope.set(i, 1.5 * (std::fabs(value) > 100 ? value > 0 : reference::gelu_slope(value)));
    }
    const Placed on_device(context, input), grad_out(context, ones), out(context, HostTensor(dtype, {n})),
        grad_input(context, HostTensor(dtype, {n}));
    gelu_forward(context, {on_device, out});
    gelu_backward(context, {grad_out, on_device, grad_input}, no_workspace);
    check_agree("gelu", out.back(), gelu, 3e-5, 1e-42);  // exp's argument is up to 100, rounded to 2^-24 of that
    check_agree("slope", grad_input.back(), slope, 3e-5, 3e-7);  // terms cancel near -0.75
  }
}

TEST_CASE("gelu on CUDA agrees with the CPU: odd sizes, strides, in place" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16}) {
    for (const Layout& at : layouts()) {
      CAPTURE(at.rows);
      CAPTURE(at.columns);
      CAPTURE(at.gap);
      const auto forward = [&](const Context& context, bool in_place) {
        const Placed input(context, random(dtype, at, 21)), out(context, blank(dtype, at));
        gelu_forward(context, {input, in_place ? input : out});
        return (in_place ? input : out).back();
      };
      const auto backward = [&](const Context& context, bool in_place) {
        const Placed input(context, random(dtype, at, 21)), grad_out(context, random(dtype, at, 22)),
            out(context, blank(dtype, at));
        gelu_backward(context, {grad_out, input, in_place ? grad_out : out}, no_workspace);
        return (in_place ? grad_out : out).back();
      };
      check_agree("forward", forward(device_context(), false), forward(Context::cpu(), false), 2e-6, 1e-9);
      check_agree("backward", backward(device_context(), false), backward(Context::cpu(), false), 2e-6, 1e-6);
      CHECK(forward(device_context(), true).values() == forward(device_context(), false).values());
      CHECK(backward(device_context(), true).values() == backward(device_context(), false).values());
    }
  }
}

TEST_CASE("gelu on CUDA: NaN and infinity as on the CPU" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const HostTensor values = HostTensor::of(DType::fp32, {quiet_nan, infinity, -infinity, 1e38, -1e38, 0, 25, -25, 1}),
                   grads = HostTensor::of(DType::fp32, {1, 1, 1, 1, 1, quiet_nan, infinity, 1, quiet_nan});
  compare("forward", 1e-6, [&](const Context& context) {
    const Placed input(context, values), out(context, HostTensor(DType::fp32, {9}));
    gelu_forward(context, {input, out});
    return out.back();
  });
  compare("backward", 1e-6, [&](const Context& context) {
    const Placed input(context, values), grad_out(context, grads), out(context, HostTensor(DType::fp32, {9}));
    gelu_backward(context, {grad_out, input, out}, no_workspace);
    return out.back();
  });
}

TEST_CASE("residual_forward and dropout_apply on CUDA: the CPU's elements are kept" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16}) {
    for (const Layout& at : layouts()) {
      for (float probability : {0.0f, 0.2f}) {
        CAPTURE(at.rows);
        CAPTURE(at.columns);
        CAPTURE(at.gap);
        CAPTURE(probability);
        const Dropout dropout{probability, 0x123456789abcdefull, (1ull << 40) + 5};
        const auto residual = [&](const Context& context, int place) {
          const Placed first(context, random(dtype, at, 23)), branch(context, random(dtype, at, 24)),
              out(context, blank(dtype, at));
          const Placed& target = place == 0 ? out : place == 1 ? first : branch;
          residual_forward(context, {first, branch, target, dropout});
          return target.back();
        };
        const auto drop = [&](const Context& context, bool in_place) {
          const Placed input(context, random(dtype, at, 25)), out(context, blank(dtype, at));
          dropout_apply(context, {input, in_place ? input : out, dropout});
          return (in_place ? input : out).back();
        };
        const HostTensor sum = residual(device_context(), 0);
        check_agree("residual", sum, residual(Context::cpu(), 0), 2e-7, 5e-7);
        CHECK(residual(device_context(), 1).values() == sum.values());
        CHECK(residual(device_context(), 2).values() == sum.values());
        CHECK(drop(device_context(), false).bytes() == drop(Context::cpu(), false).bytes());
        CHECK(drop(device_context(), true).bytes() == drop(Context::cpu(), true).bytes());
      }
    }
  }
}

TEST_CASE("dropout_apply on CUDA: any probability, NaN is dropped too" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Layout at{64, 1000, 0, 0};
  for (float probability : {1e-30f, 1e-6f, 0.1f, 0.5f, 0.9999f, 1 - 0x1p-24f}) {
    for (double value : {1.0, quiet_nan}) {
      CAPTURE(probability);
      const auto run = [&](const Context& context) {
        HostTensor values(DType::fp32, {at.rows, at.columns});
        for (std::int64_t i = 0; i < at.rows * at.columns; ++i) values.set(i, value);
        const Placed input(context, values), out(context, blank(DType::fp32, at));
        dropout_apply(context, {input, out, {probability, 99, 7}});
        return out.back();
      };
      check_agree("dropout", run(device_context()), run(Context::cpu()), 0);
    }
  }
}

TEST_CASE("softcap on CUDA" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16}) {
    for (const Layout& at : layouts()) {
      const auto run = [&](const Context& context, bool in_place) {
        const Placed input(context, random(dtype, at, 26, -100, 100)), out(context, blank(dtype, at));
        softcap(context, {input, in_place ? input : out, 15});
        return (in_place ? input : out).back();
      };
      check_agree("softcap", run(device_context(), false), run(Context::cpu(), false), 1e-6);
      CHECK(run(device_context(), true).values() == run(device_context(), false).values());
    }
  }
  compare("softcap", 0, [&](const Context& context) {
    const Placed input(context, HostTensor::of(DType::fp32, {infinity, -infinity, quiet_nan, 0, -0.0})),
        out(context, HostTensor(DType::fp32, {5}));
    softcap(context, {input, out, 2});
    return out.back();
  });
}

TEST_CASE("gelu_backward on CUDA: the gradient of a bias is its column_sum, to the bit" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Context context = device_context();
  for (DType dtype : {DType::fp32, DType::bf16}) {
    for (const Layout& at : summed_layouts()) {
      CAPTURE(at.rows);
      CAPTURE(at.columns);
      const Placed input(context, random(dtype, at, 21)), grad_out(context, random(dtype, at, 22)),
          alone(context, blank(dtype, at)), expected(context, HostTensor::random(DType::fp32, {at.columns}, 6)),
          sums(context, HostTensor::random(DType::fp32, {at.columns}, 6));
      GuardedWorkspace scratch(context, column_sum_workspace_bytes(context, at.rows, at.columns));
      gelu_backward(context, {grad_out, input, alone}, scratch.workspace);
      for (bool accumulate : {true, false}) {
        const Placed both(context, random(dtype, at, 22));
        gelu_backward(context, {both, input, both, sums, accumulate}, scratch.workspace);
        column_sum(context, {alone, expected, accumulate}, scratch.workspace);
        CHECK(both.back().values() == alone.back().values());
        CHECK(sums.back().bytes() == expected.back().bytes());
      }
      CHECK(scratch.intact());
    }
  }
}

TEST_CASE("column_sum on CUDA" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  for (DType dtype : {DType::fp32, DType::bf16}) {
    for (const Layout& size : summed_layouts()) {
      for (bool accumulate : {false, true}) {
        CAPTURE(size.rows);
        CAPTURE(size.columns);
        const auto run = [&](const Context& context) {
          const Placed input(context, HostTensor::random(dtype, {size.rows, size.columns}, 5, 0.5, 2,
                                                         size.columns + size.gap, size.offset));
          const HostTensor blank(DType::fp32, {size.columns});
          const Placed out(context, accumulate ? HostTensor::random(DType::fp32, {size.columns}, 6) : blank);
          GuardedWorkspace scratch(context, column_sum_workspace_bytes(context, size.rows, size.columns));
          column_sum(context, {input, out, accumulate}, scratch.workspace);
          CHECK(scratch.intact());
          return out.back();
        };
        compare("column_sum", 1e-6, run);
        CHECK(run(device_context()).bytes() == run(device_context()).bytes());
      }
    }
  }
}

TEST_CASE("column_sum on CUDA: the scratch of more rows is enough for fewer" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Context context = device_context();
  if (context.device().is_cpu()) return;  // its sums are cut otherwise
  std::size_t before = 0;
  for (std::int64_t rows = 0; rows < 70000; rows += 61) {
    const std::size_t bytes = column_sum_workspace_bytes(context, rows, 500);
    CHECK(bytes >= before);
    before = bytes;
  }
}

TEST_CASE("cast on CUDA" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  // With gaps of 16 bytes in every dtype and without; off 16 bytes; dense and longer than a row of the kernel's own.
  const Layout sizes[] = {{9, 17, 3, 1}, {9, 24, 8, 0}, {5, 8, 0, 0}, {3, 40001, 0, 0}, {1, 65536, 0, 0}, {0, 4, 0, 0}};
  for (DType from : {DType::fp32, DType::bf16, DType::fp16}) {
    for (DType to : {DType::fp32, DType::bf16, DType::fp16}) {
      for (const Layout& at : sizes) {
        for (std::int64_t to_gap : {std::int64_t{0}, at.gap}) {
          CAPTURE(std::string(name_of(from)));
          CAPTURE(std::string(name_of(to)));
          CAPTURE(at.columns);
          const auto run = [&](const Context& context) {
            HostTensor values = random(from, at, 7, -70000, 70000);
            if (at.rows > 0) {
              values.set(3, std::numeric_limits<double>::infinity());
              values.set(2, 1e-7);
            }
            const Placed input(context, values),
                out(context, HostTensor(to, {at.rows, at.columns}, at.columns + to_gap, 3 * at.offset));
            cast(context, {input, out});
            return out.back();
          };
          CHECK(run(device_context()).bytes() == run(Context::cpu()).bytes());
        }
      }
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
