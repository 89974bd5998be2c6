// loss/row_loss.cuh: functors of the caller's as kernels, against fp64 and against the library's own losses.
#include <greyhound/loss/loss.h>
#include <tests/cuda_support.h>
#include <tests/differences.h>
#include <tests/reference/cross_entropy.h>
#include <greyhound/loss/row_loss.cuh>

#include <functional>
#include <limits>

using namespace greyhound;
using namespace greyhound::cuda_test;

namespace {

// sum_j max(0, 1 - t_j z_j)^2 with t_y = 1 and t_j = -1 elsewhere.
struct SquaredHinge {
  const std::int32_t* targets;

  struct Statistics {
    float sum;
  };
  __device__ float gap(float logit, std::int64_t row, int column) const {
    return fmaxf(0.0f, column == targets[row] ? 1.0f - logit : 1.0f + logit);
  }
  __device__ Statistics none() const { return {0}; }
  __device__ void add(Statistics& s, float logit, std::int64_t row, int column) const {
    s.sum += gap(logit, row, column) * gap(logit, row, column);
  }
  __device__ void combine(Statistics& s, const Statistics& other) const { s.sum += other.sum; }
  __device__ float loss(const Statistics& s, std::int64_t) const { return s.sum; }
  __device__ float gradient(const Statistics&, float logit, std::int64_t row, int column) const {
    return (column == targets[row] ? -2.0f : 2.0f) * gap(logit, row, column);
  }
};

struct CrossEntropy : loss::TargetSoftmaxLoss<std::int32_t> {
  using TargetSoftmaxLoss::TargetSoftmaxLoss;
  __device__ float loss(const Statistics& s, std::int64_t) const { return s.has_target ? -s.log_p() : 0.0f; }
  __device__ float gradient(const Statistics& s, float logit, std::int64_t row, int column) const {
    return s.has_target ? -s.log_p_gradient(logit, column == target(row)) : 0.0f;
  }
};

// sum of statistics of 8 bytes each, to see that they travel between threads whole: the row's first and last class.
struct Columns {
  struct Statistics {
    std::int64_t first, last;
  };
  __device__ Statistics none() const { return {std::int64_t{1} << 40, -1}; }
  __device__ void add(Statistics& s, float, std::int64_t, int column) const { combine(s, {column, column}); }
  __device__ void combine(Statistics& s, const Statistics& other) const {
    s.first = min(s.first, other.first);
    s.last = max(s.last, other.last);
  }
  __device__ float loss(const Statistics& s, std::int64_t row) const {
    return static_cast<float>(1000 * row + s.last - s.first);
  }
  __device__ float gradient(const Statistics&, float, std::int64_t, int column) const {
    return static_cast<float>(column % 128);
  }
};

constexpr std::int64_t rows = 3;

// A tile of `logits` with its own memory.
struct Tile {
  Tile(const Context& context, const HostTensor& values)
      : logits(context, values), row_loss(context, HostTensor(DType::fp32, {values.shape().rows()})) {}
  loss::LogitsTile tile(bool gradients = true, std::int64_t first_row = 0) const {
    return {logits, row_loss, first_row, gradients};
  }
  Placed logits, row_loss;
};

HostTensor targets_of(std::int64_t count, std::int64_t vocab) {
  HostTensor index(DType::int32, {count});
  for (std::int64_t row = 0; row < count; ++row) index.set_index(row, (row * 7919 + vocab / 2) % vocab);
  return index;
}

struct Layout {
  DType dtype;
  std::int64_t vocab, gap, offset;
};

// Rows of one element, of part of a pack, of many, and longer than the shared memory of a multiprocessor; dense,
// apart, and at odd addresses.
std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const std::int64_t beyond_shared = dtype == DType::fp32 ? 70001 : 131101;
    for (std::int64_t vocab :
         {std::int64_t{1}, std::int64_t{7}, std::int64_t{129}, std::int64_t{4096}, beyond_shared}) {
      all.push_back({dtype, vocab, 0, 0});
      all.push_back({dtype, vocab, 3, 1});
      all.push_back({dtype, vocab, (16 - vocab % 16) % 16, 0});
    }
  }
  return all;
}

HostTensor logits_of(const Layout& layout, double range = 3) {
  return HostTensor::random(layout.dtype, {rows, layout.vocab}, 61, -range, range, layout.vocab + layout.gap,
                            layout.offset);
}

std::vector<double> row_of(const HostTensor& matrix, std::int64_t row) {
  std::vector<double> values;
  for (std::int64_t j = 0; j < matrix.shape()[1]; ++j) values.push_back(matrix.get(row * matrix.shape()[1] + j));
  return values;
}

// Compares with a row's loss and gradient in fp64.
using Reference =
    std::function<std::pair<double, std::vector<double>>(std::vector<double> logits, std::int64_t target)>;

void check_rows(const Tile& tile, const HostTensor& logits, const HostTensor& targets, const Reference& reference) {
  HostTensor expected = logits, losses(DType::fp32, {rows});
  const std::int64_t vocab = logits.shape()[1];
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto [value, gradient] = reference(row_of(logits, row), static_cast<std::int64_t>(targets.get(row)));
    losses.set(row, value);
    for (std::int64_t j = 0; j < vocab; ++j) expected.set(row * vocab + j, gradient[static_cast<std::size_t>(j)]);
  }
  check_agree("gradient", tile.logits.back(), expected, 1e-5, 1e-30);
  check_agree("row_loss", tile.row_loss.back(), losses, 1e-5, 1e-7);
}

}  // namespace

TEST_CASE("row_loss: a tile that is not on a CUDA context's device is a usage error") {
  float values[4] = {}, losses[2] = {};
  const loss::LogitsTile tile{tensor(values, DType::fp32, {2, 2}), tensor(losses, DType::fp32, {2}), 0, true};
  CHECK_THROWS_WITH_AS(loss::row_loss(Context::cpu(), tile, Columns{}), doctest::Contains("expected a context on CUDA"),
                       Error);
}

TEST_CASE("row_loss: mistakes in a tile are usage errors" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Context context = Context::cuda();
  const Tile tile(context, HostTensor::random(DType::fp32, {2, 8}, 60));
  float losses[2] = {};
  loss::LogitsTile host = tile.tile();
  host.row_loss = tensor(losses, DType::fp32, {2});
  CHECK_THROWS_WITH_AS(loss::row_loss(context, host, Columns{}), doctest::Contains("is on cpu"), Error);
  loss::LogitsTile short_losses = tile.tile();
  short_losses.row_loss = short_losses.row_loss.slice(0, {1});
  CHECK_THROWS_WITH_AS(loss::row_loss(context, short_losses, Columns{}), doctest::Contains("row_loss"), Error);
  loss::LogitsTile integers = tile.tile();
  integers.logits.dtype = DType::int32;
  CHECK_THROWS_WITH_AS(loss::row_loss(context, integers, Columns{}), doctest::Contains("logits"), Error);
}

TEST_CASE("row_loss: squared hinge loss against fp64" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Context context = Context::cuda();
  for (const Layout& layout : layouts()) {
    CAPTURE(std::string(name_of(layout.dtype)));
    CAPTURE(layout.vocab);
    CAPTURE(layout.offset);
    const HostTensor logits = logits_of(layout), targets = targets_of(rows, layout.vocab);
    const Placed index(context, targets);
    const Tile tile(context, logits);
    loss::row_loss(context, tile.tile(), SquaredHinge{index.tensor().as<std::int32_t>()});
    check_rows(tile, logits, targets, [](std::vector<double> z, std::int64_t y) {
      double sum = 0;
      for (std::size_t j = 0; j < z.size(); ++j) {
        const double sign = static_cast<std::int64_t>(j) == y ? 1 : -1, gap = std::fmax(0.0, 1 - sign * z[j]);
        sum += gap * gap;
        z[j] = -2 * sign * gap;
      }
      return std::pair(sum, z);
    });
  }
}

TEST_CASE("row_loss: cross-entropy against fp64 and against cross_entropy" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Context context = Context::cuda();
  for (const Layout& layout : layouts()) {
    CAPTURE(std::string(name_of(layout.dtype)));
    CAPTURE(layout.vocab);
    CAPTURE(layout.offset);
    const HostTensor logits = logits_of(layout, 8), targets = targets_of(rows, layout.vocab);
    const Placed index(context, targets);
    const Tile tile(context, logits), own(context, logits);
    loss::row_loss(context, tile.tile(), CrossEntropy(index.tensor().as<std::int32_t>()));
    check_rows(tile, logits, targets, [](const std::vector<double>& z, std::int64_t y) {
      const reference::CrossEntropyRow row = reference::cross_entropy_row(z, y, {});
      return std::pair(row.loss, row.grad);
    });

    const DeviceMemory storage(context, loss::LossSums::bytes);
    loss::LossSums sums(context, storage.data());
    sums.reset(context);
    GuardedWorkspace scratch(context, loss::cross_entropy_workspace_bytes(context, rows));
    loss::CrossEntropyOptions options;
    options.reduction = loss::Reduction::sum;
    loss::RowOutputs outputs;
    outputs.loss = own.row_loss;
    loss::cross_entropy_with_grad(context, own.logits, index, options, scratch.workspace, sums, outputs);
    check_agree("gradient", tile.logits.back(), own.logits.back(), 1e-5, 1e-30);
    check_agree("row_loss", tile.row_loss.back(), own.row_loss.back(), 1e-5, 1e-7);
  }
}

TEST_CASE("row_loss: a confident row keeps its small loss and gradient" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Context context = Context::cuda();
  const Placed index(context, targets_of(1, 3));  // class 1
  const Tile tile(context, HostTensor::of(DType::fp32, {-20, 10, -30}));
  loss::LogitsTile row = tile.tile();
  row.logits = row.logits.reshape({1, 3});
  row.row_loss = row.row_loss.slice(0, {1});
  loss::row_loss(context, row, CrossEntropy(index.tensor().as<std::int32_t>()));
  const double others = std::exp(-30.0) + std::exp(-40.0);
  CHECK(tile.row_loss.back().get(0) == doctest::Approx(others).epsilon(1e-5));
  CHECK(tile.logits.back().get(0) == doctest::Approx(std::exp(-30.0)).epsilon(1e-5));
  CHECK(tile.logits.back().get(1) == doctest::Approx(-others).epsilon(1e-5));
}

TEST_CASE("row_loss: every column once, rows counted from first_row, logits kept without gradients" *
          doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Context context = Context::cuda();
  for (const Layout& layout : layouts()) {
    CAPTURE(layout.vocab);
    const HostTensor logits = logits_of(layout);
    const Tile tile(context, logits);
    loss::row_loss(context, tile.tile(false, 40), Columns{});
    CHECK(tile.logits.back().bytes() == logits.bytes());
    loss::row_loss(context, tile.tile(true, 40), Columns{});
    HostTensor columns = logits, losses(DType::fp32, {rows});
    for (std::int64_t row = 0; row < rows; ++row) {
      losses.set(row, static_cast<double>(1000 * (40 + row) + layout.vocab - 1));
      for (std::int64_t j = 0; j < layout.vocab; ++j) columns.set(row * layout.vocab + j, static_cast<double>(j % 128));
    }
    CHECK(tile.logits.back().bytes() == columns.bytes());
    CHECK(tile.row_loss.back().bytes() == losses.bytes());
  }
}

TEST_CASE("row_loss: masked logits take part in nothing, NaN and +inf make their own row NaN" *
          doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Context context = Context::cuda();
  const std::int64_t vocab = 1031;
  constexpr double inf = std::numeric_limits<double>::infinity();
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    HostTensor logits = HostTensor::random(dtype, {4, vocab}, 62);
    for (std::int64_t j = 0; j < vocab; ++j) {
      if (j != 5 && j != 900) logits.set(j, -inf);  // row 0: two classes are left
    }
    logits.set(vocab + 700, std::numeric_limits<double>::quiet_NaN());
    logits.set(2 * vocab + 3, inf);
    HostTensor targets(DType::int32, {4});
    for (std::int64_t row = 0; row < 4; ++row) targets.set_index(row, 5);
    const Placed target(context, targets);
    const Tile tile(context, logits);
    loss::row_loss(context, tile.tile(), CrossEntropy(target.tensor().as<std::int32_t>()));
    const HostTensor losses = tile.row_loss.back(), gradient = tile.logits.back();
    const double p = 1 / (1 + std::exp(logits.get(900) - logits.get(5)));
    CHECK(losses.get(0) == doctest::Approx(-std::log(p)).epsilon(1e-5));
    CHECK(gradient.get(0) == 0);
    CHECK(agree(dtype, gradient.get(5), p - 1, 1e-5, 0));
    CHECK(std::isnan(losses.get(1)));
    CHECK(std::isnan(losses.get(2)));
    CHECK(std::isfinite(losses.get(3)));
  }
}

TEST_CASE("row_loss: the same bits again, and at any stride and alignment" * doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const Context context = Context::cuda();
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (std::int64_t vocab : {std::int64_t{1031}, std::int64_t{131101}}) {
      const Placed index(context, targets_of(rows, vocab));
      std::vector<double> losses, gradients;
      for (const Layout& layout :
           {Layout{dtype, vocab, 0, 0}, Layout{dtype, vocab, 0, 0}, Layout{dtype, vocab, 5, 1}}) {
        const Tile tile(context, logits_of(layout));
        loss::row_loss(context, tile.tile(), CrossEntropy(index.tensor().as<std::int32_t>()));
        if (losses.empty()) losses = tile.row_loss.back().values();
        if (gradients.empty()) gradients = tile.logits.back().values();
        CHECK(tile.row_loss.back().values() == losses);
        CHECK(tile.logits.back().values() == gradients);
      }
    }
  }
}

TEST_CASE("row_loss: as the callback of chunked_linear_loss, as it is and captured, it is the built-in loss" *
          doctest::test_suite("cuda")) {
  if (!have_device()) return;
  const std::int64_t tokens = 50, hidden = 64, vocab = 1001;
  cudaStream_t stream = nullptr;
  cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  const Context context = Context::cuda(0, stream);
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    CAPTURE(std::string(name_of(dtype)));
    HostTensor targets = targets_of(tokens, vocab);
    for (std::int64_t row = 3; row < tokens; row += 9) targets.set_index(row, -100);
    const Placed index(context, targets);
    const Placed inputs(context, HostTensor::random(dtype, {tokens, hidden}, 63, -1, 1));
    const Placed weight(context, HostTensor::random(dtype, {vocab, hidden}, 64, -0.5, 0.5));
    loss::PlanOptions plan_options;
    plan_options.chunk_rows = 16;
    const loss::Plan plan = loss::plan_chunked_linear_loss(context, {tokens, hidden, vocab, dtype}, plan_options);
    GuardedWorkspace scratch(context, plan.workspace_bytes);
    const DeviceMemory storage(context, loss::LossSums::bytes);
    loss::LossSums sums(context, storage.data());

    struct Gradients {
      Gradients(const Context& context, DType dtype)
          : input(context, HostTensor(dtype, {tokens, hidden})),
            weight(context, HostTensor(DType::fp32, {vocab, hidden})) {}
      loss::LinearGradients to() const { return {loss::overwrite(input), loss::overwrite(weight), {}}; }
      Placed input, weight;
    };
    const Gradients own(context, dtype), direct(context, dtype), captured(context, dtype);
    const auto call = [&](const Gradients& gradients) {
      sums.reset(context);
      loss::chunked_linear_loss(
          context, plan, {inputs, weight, {}},
          [&](const Context& on, const loss::LogitsTile& tile) {
            loss::row_loss(on, tile, CrossEntropy(index.tensor().as<std::int32_t>()));
          },
          gradients.to(), scratch.workspace, sums);
    };

    sums.reset(context);
    loss::CrossEntropyOptions options;
    options.reduction = loss::Reduction::sum;
    loss::chunked_linear_cross_entropy(context, plan, {inputs, weight, index, {}}, options, own.to(), scratch.workspace,
                                       sums);
    const double expected = sums.read(context).ce_sum;
    call(direct);
    const double given = sums.read(context).ce_sum;
    CHECK(given == doctest::Approx(expected).epsilon(1e-5));
    // Gradients of 16 bits may be rounded to either neighbour in the tile; fp16's own loss also scales them.
    const double relative = dtype == DType::fp32 ? 1e-5 : dtype == DType::bf16 ? 1e-2 : 2e-3;
    const auto compare = [&](const char* name, const Placed& got, const Placed& want) {
      check_agree(name, got.back(), want.back(), 1e-5, relative * test::largest_magnitude(want.back().values()));
    };
    compare("grad_input", direct.input, own.input);
    compare("grad_weight", direct.weight, own.weight);

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    call(captured);
    cuda::check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    cuda::check(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
    cuda::check(cudaGraphLaunch(replay, stream), "cudaGraphLaunch");
    CHECK(sums.read(context).ce_sum == given);
    CHECK(captured.input.back().bytes() == direct.input.back().bytes());
    CHECK(captured.weight.back().bytes() == direct.weight.back().bytes());
    cuda::check(cudaGraphExecDestroy(replay), "cudaGraphExecDestroy");
    cuda::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    CHECK(scratch.intact());
  }
  cuda::check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}
