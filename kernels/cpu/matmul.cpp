// The output is cut into panels whose sizes follow from the shape alone; each panel is the work of one thread, product
// and epilogue, so the bits do not depend on how many threads there are.
#include <greyhound/kernels/matmul.h>

#include <greyhound/kernels/cpu/gelu.h>
#include <greyhound/kernels/cpu/panel_product.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <array>
#include <atomic>

namespace greyhound::cpu {

namespace {

constexpr std::int64_t max_panel_columns = 384;
// Operands that are copied (converted to fp32, or transposed with a bad stride) are copied in blocks of this depth,
// which bounds the workspace. oneDNN's faster kernels start at a depth of 378.
constexpr std::int64_t block_depth = 512;

struct Partition {
  std::int64_t m, n, k;        // of the whole product
  std::int64_t rows, columns;  // of a panel; the last ones may be smaller
  std::int64_t row_panels, column_panels;

  std::int64_t panels() const { return row_panels * column_panels; }
  std::int64_t depth() const { return std::min(k, block_depth); }
};

// Large panels pack each operand less often; small ones keep 16 threads busy. The largest that gives 16 panels is
// taken.
Partition partition_of(const Matmul& args) {
  Partition p{};
  p.m = args.out.rows();
  p.n = args.out.columns();
  p.k = args.transpose_a ? args.a.rows() : args.a.columns();
  constexpr std::array<std::array<std::int64_t, 2>, 5> sizes{
      {{256, max_panel_columns}, {128, 384}, {128, 192}, {64, 192}, {64, 96}}};
  for (const auto& [rows, columns] : sizes) {
    p.row_panels = (p.m + rows - 1) / rows;
    p.column_panels = (p.n + columns - 1) / columns;
    if (p.panels() >= 16) break;
  }
  if (p.panels() == 0) return p;
  // Panels of equal size instead of a small last one.
  p.rows = std::min(p.m, round_up((p.m + p.row_panels - 1) / p.row_panels, 8));
  p.columns = std::min(p.n, round_up((p.n + p.column_panels - 1) / p.column_panels, 16));
  p.row_panels = (p.m + p.rows - 1) / p.rows;
  p.column_panels = (p.n + p.columns - 1) / p.columns;
  return p;
}

int team_size(const Context& context, const Partition& p) {
  return static_cast<int>(std::min<std::int64_t>(context.threads(), p.panels()));
}

// Where one thread's scratch holds what, in floats. Depends on shapes and dtypes alone.
struct Scratch {
  std::size_t a = 0, b = 0, product = 0;  // behind the fp32 result panel, which starts at 0
  std::size_t bytes = 0;
};

// The largest scratchpad of the prepared 16-bit products of all panel shapes; nothing where one of them is missing.
struct HalfProducts {
  const HalfProduct* products[2][2] = {};  // [last row panel][last column panel]
  std::size_t scratch_bytes = 0;
  bool available = false;
};

HalfProducts prepare_half(const Context& context, const Matmul& args, const Partition& p, std::int64_t lda,
                          std::int64_t ldb) {
  HalfProducts half;
  if (args.a.dtype == DType::fp32 || p.k == 0) return half;
  Cache& cache = context.cache<Cache>();
  for (int last_row = 0; last_row < 2; ++last_row) {
    for (int last_column = 0; last_column < 2; ++last_column) {
      const std::int64_t rows = last_row ? p.m - (p.row_panels - 1) * p.rows : p.rows;
      const std::int64_t columns = last_column ? p.n - (p.column_panels - 1) * p.columns : p.columns;
      const HalfProduct* product =
          find_half_product(cache, {args.a.dtype, args.transpose_a, args.transpose_b, rows, columns, p.k, lda, ldb});
      if (product == nullptr) return half;
      half.products[last_row][last_column] = product;
      half.scratch_bytes = std::max(half.scratch_bytes, half_product_scratch_bytes(*product));
    }
  }
  half.available = true;
  return half;
}

// half_scratch_bytes: the scratchpad of the prepared 16-bit products.
Scratch scratch_of(const Matmul& args, const Partition& p, std::size_t half_scratch_bytes) {
  const bool convert = args.a.dtype != DType::fp32;
  Scratch s;
  s.a = static_cast<std::size_t>(round_up(p.rows * p.columns, 64));
  s.b = s.a + static_cast<std::size_t>(convert || args.transpose_a ? round_up(p.rows * p.depth(), 64) : 0);
  s.product = s.b + static_cast<std::size_t>(convert || !args.transpose_b ? round_up(p.columns * p.depth(), 64) : 0);
  std::size_t floats = s.product + panel_product_scratch(p.rows, p.columns, p.k);
  floats = std::max(floats, s.a + (half_scratch_bytes + 3) / 4);
  s.bytes = static_cast<std::size_t>(round_up(static_cast<std::int64_t>(floats * sizeof(float)), memory_alignment));
  return s;
}

// Strides may be others when the product runs; dense ones stand for all in the plan.
Scratch planned_scratch(const Context& context, const Matmul& args, const Partition& p) {
  return scratch_of(args, p, prepare_half(context, args, p, args.a.columns(), args.b.columns()).scratch_bytes);
}

std::size_t total_bytes(const Context& context, const Partition& p, const Scratch& s) {
  return static_cast<std::size_t>(team_size(context, p)) * s.bytes;
}

template <class T>
void copy_block(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, float* to) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* source = from + r * stride;
    float* target = to + r * columns;
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) target[c] = to_float(source[c]);
  }
}

// out = activation(alpha * sum + beta * out + bias) for a panel; `sum` may be `out` itself when beta is 0.
template <class Out>
void finish_panel(const Matmul& args, std::int64_t first_row, std::int64_t first_column, std::int64_t rows,
                  std::int64_t columns, const float* sum, std::int64_t sum_stride, float alpha, float beta) {
  float bias[max_panel_columns] = {};
  if (args.bias) {
    dispatch(args.bias.dtype, "matmul: bias", [&](auto tag) {
      using T = typename decltype(tag)::type;
      copy_block(args.bias.as<T>() + first_column, 0, 1, columns, bias);
    });
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* source = sum + r * sum_stride;
    Out* out = args.out.row<Out>(first_row + r) + first_column;
    float row[max_panel_columns];
    if (beta == 0) {
#pragma omp simd
      for (std::int64_t c = 0; c < columns; ++c) row[c] = alpha * source[c] + bias[c];
    } else {
#pragma omp simd
      for (std::int64_t c = 0; c < columns; ++c) row[c] = alpha * source[c] + beta * to_float(out[c]) + bias[c];
    }
    if (args.pre_activation) {
      Out* pre = args.pre_activation.row<Out>(first_row + r) + first_column;
#pragma omp simd
      for (std::int64_t c = 0; c < columns; ++c) pre[c] = from_float<Out>(row[c]);
    }
    if (args.activation == Activation::gelu) {
#pragma omp simd
      for (std::int64_t c = 0; c < columns; ++c) row[c] = gelu(to_float(from_float<Out>(row[c])));
    }
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) out[c] = from_float<Out>(row[c]);
  }
}

// A stride of a multiple of 4 KiB puts the column of a block into few sets of the first-level cache.
bool bad_stride(std::int64_t stride) { return stride % 1024 == 0; }

// The sum over all depths of one panel: alpha * op(a) x op(b) + beta * c, operands converted to fp32 block by block
// where they are not, in scratch.
template <class T>
bool fp32_panel(const Matmul& args, const Partition& p, const Scratch& s, std::int64_t first_row,
                std::int64_t first_column, std::int64_t rows, std::int64_t columns, float alpha, float beta, float* c,
                std::int64_t ldc, float* scratch) {
  const T* a = args.a.as<T>() + first_row * (args.transpose_a ? 1 : args.a.row_stride);
  const T* b = args.b.as<T>() + first_column * (args.transpose_b ? args.b.row_stride : 1);
  constexpr bool is_float = std::is_same_v<T, float>;
  const bool copy_a = !is_float || (args.transpose_a && bad_stride(args.a.row_stride));
  const bool copy_b = !is_float || (!args.transpose_b && bad_stride(args.b.row_stride));
  const std::int64_t step = copy_a || copy_b ? block_depth : p.k;
  for (std::int64_t first = 0; first < p.k; first += step) {
    const std::int64_t depth = std::min(step, p.k - first);
    PanelProduct product{
        args.transpose_a,  args.transpose_b,         rows, columns, depth, alpha, nullptr, args.a.row_stride, nullptr,
        args.b.row_stride, first == 0 ? beta : 1.0f, c,    ldc};
    const T* block_a = a + first * (args.transpose_a ? args.a.row_stride : 1);
    const T* block_b = b + first * (args.transpose_b ? 1 : args.b.row_stride);
    if (copy_a) {
      product.lda = args.transpose_a ? rows : depth;
      copy_block(block_a, args.a.row_stride, args.transpose_a ? depth : rows, product.lda, scratch + s.a);
      product.a = scratch + s.a;
    } else if constexpr (is_float) {
      product.a = block_a;
    }
    if (copy_b) {
      product.ldb = args.transpose_b ? depth : columns;
      copy_block(block_b, args.b.row_stride, args.transpose_b ? columns : depth, product.ldb, scratch + s.b);
      product.b = scratch + s.b;
    } else if constexpr (is_float) {
      product.b = block_b;
    }
    if (!panel_product(product, scratch + s.product)) return false;
  }
  return true;
}

template <class T, class Out>
bool run_panel(const Matmul& args, const Partition& p, const Scratch& s, const HalfProducts& half, std::int64_t panel,
               float* scratch) {
  const std::int64_t i = panel % p.row_panels, j = panel / p.row_panels;  // a panel of b serves all rows in turn
  const std::int64_t first_row = i * p.rows, first_column = j * p.columns;
  const std::int64_t rows = std::min(p.rows, p.m - first_row), columns = std::min(p.columns, p.n - first_column);

  // alpha = 0 is left to the epilogue: 0 * NaN is NaN, which libraries skip.
  if constexpr (std::is_same_v<T, float> && std::is_same_v<Out, float>) {
    if (p.k > 0 && args.alpha != 0) {
      float* c = args.out.row<float>(first_row) + first_column;
      const std::int64_t ldc = args.out.row_stride;
      if (!fp32_panel<T>(args, p, s, first_row, first_column, rows, columns, args.alpha, args.beta, c, ldc, scratch)) {
        return false;
      }
      if (args.bias || args.pre_activation || args.activation != Activation::none) {
        finish_panel<Out>(args, first_row, first_column, rows, columns, c, ldc, 1, 0);
      }
      return true;
    }
  }
  if (p.k == 0) {
    std::fill_n(scratch, rows * columns, 0.0f);
  } else if (half.available) {
    const T* a = args.a.as<T>() + first_row * (args.transpose_a ? 1 : args.a.row_stride);
    const T* b = args.b.as<T>() + first_column * (args.transpose_b ? args.b.row_stride : 1);
    const HalfProduct& product = *half.products[i == p.row_panels - 1][j == p.column_panels - 1];
    if (!half_product(product, a, b, scratch, scratch + s.a)) return false;
  } else if (!fp32_panel<T>(args, p, s, first_row, first_column, rows, columns, 1, 0, scratch, columns, scratch)) {
    return false;
  }
  finish_panel<Out>(args, first_row, first_column, rows, columns, scratch, columns, args.alpha, args.beta);
  return true;
}

// Products of fp32 that are made in one piece, not of panels.
bool is_blocked(const Matmul& args, const Partition& p) {
  return args.a.dtype == DType::fp32 && p.k > 0 && prefers_builtin_product();
}

// Waking a team costs some microseconds: not worth it for products of less.
bool is_small(const Partition& p) { return p.m * p.n * p.k < 32 * 1024; }

Shape blocked_scratch(const Context& context, const Partition& p) {
  const std::size_t floats = BlockedProduct::scratch(p.m, p.k, context.threads());
  return Shape{static_cast<std::int64_t>(floats)};
}

void run_blocked(const Context& context, const Matmul& args, const Partition& p, Workspace& workspace) {
  const Workspace::Scope scope(workspace);
  float* scratch = workspace.take(DType::fp32, blocked_scratch(context, p)).as<float>();
  const PanelProduct product{args.transpose_a,
                             args.transpose_b,
                             p.m,
                             p.n,
                             p.k,
                             args.alpha,
                             args.a.as<float>(),
                             args.a.row_stride,
                             args.b.as<float>(),
                             args.b.row_stride,
                             args.beta,
                             args.out.as<float>(),
                             args.out.row_stride};
  BlockedProduct::Finish finish;
  if (args.bias || args.pre_activation || args.activation != Activation::none) {
    finish = [&](std::int64_t first_row, std::int64_t first_column, std::int64_t rows, std::int64_t columns) {
      const float* sum = args.out.row<float>(first_row) + first_column;
      finish_panel<float>(args, first_row, first_column, rows, columns, sum, args.out.row_stride, 1, 0);
    };
  }
  BlockedProduct::run(product, is_small(p) ? 1 : context.threads(), scratch, finish);
}

template <class T, class Out>
void run(const Context& context, const Matmul& args, Workspace& workspace) {
  const Partition p = partition_of(args);
  if (p.panels() == 0) return;
  if constexpr (std::is_same_v<T, float> && std::is_same_v<Out, float>) {
    if (is_blocked(args, p)) return run_blocked(context, args, p, workspace);
  }
  const SingleThreadedLibrary held;
  Scratch s = planned_scratch(context, args, p);
  // A workspace that was planned for other sizes may lack the library's scratchpad: the fp32 path needs none.
  if (workspace.bytes() - workspace.used() < total_bytes(context, p, s)) s = scratch_of(args, p, 0);
  HalfProducts half = prepare_half(context, args, p, args.a.row_stride, args.b.row_stride);
  if (s.a * sizeof(float) + half.scratch_bytes > s.bytes) half.available = false;  // more than there is

  const Workspace::Scope scope(workspace);
  const Tensor block = workspace.take(DType::uint8, Shape{static_cast<std::int64_t>(total_bytes(context, p, s))});
  const int threads = is_small(p) ? 1 : team_size(context, p);
  std::atomic<bool> failed = false;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (std::int64_t panel = 0; panel < p.panels(); ++panel) {
    int thread = 0;
#ifdef _OPENMP
    thread = omp_get_thread_num();
#endif
    float* scratch = reinterpret_cast<float*>(static_cast<std::byte*>(block.data) + thread * s.bytes);
    if (!run_panel<T, Out>(args, p, s, half, panel, scratch)) failed = true;
  }
  if (failed) {
    throw_runtime("matmul: ", panel_product_library(), " failed on [", p.m, ", ", p.k, "] x [", p.k, ", ", p.n, "]");
  }
}

}  // namespace

void matmul(const Context& context, const Matmul& args, Workspace& workspace) {
  dispatch(args.a.dtype, "matmul: a", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (args.out.dtype == DType::fp32) {
      run<T, float>(context, args, workspace);
    } else {
      run<T, T>(context, args, workspace);
    }
  });
}

std::size_t matmul_workspace_bytes(const Context& context, const Matmul& args) {
  const Partition p = partition_of(args);
  if (p.panels() == 0) return 0;
  if (is_blocked(args, p)) return Workspace::size(DType::fp32, blocked_scratch(context, p));
  const SingleThreadedLibrary held;
  return total_bytes(context, p, planned_scratch(context, args, p));
}

std::string matmul_library() { return panel_product_library(); }

}  // namespace greyhound::cpu
