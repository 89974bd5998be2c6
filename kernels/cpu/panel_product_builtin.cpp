// Products of fp32 matrices, after K. Goto, R. van de Geijn, "Anatomy of high-performance matrix multiplication", 2008:
// blocks of both operands are packed so that the innermost kernel, a block of c held in registers, reads them
// contiguously; vectors are the compiler's own, as wide as the processor it compiles for has them.
#include <greyhound/kernels/cpu/panel_pack.h>
#include <greyhound/kernels/cpu/panel_product.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>

namespace greyhound::cpu {

namespace {

#if defined(__AVX512F__)
constexpr int lanes = 16, tile_rows = 12;  // 24 of 32 registers hold c
#elif defined(__AVX__)
constexpr int lanes = 8, tile_rows = 6;  // 12 of 16 registers
#else
constexpr int lanes = 4, tile_rows = 6;
#endif
constexpr int tile_columns = 2 * lanes;
// A packed strip of b (256 x 16 floats, 16 KiB) stays in the first-level cache.
constexpr std::int64_t block_depth = 256;

typedef float Vector __attribute__((vector_size(lanes * sizeof(float)), aligned(4), may_alias));

// Where a block of c stands, and what becomes of it: c = alpha * sum + beta * c.
struct Target {
  float* c;
  std::int64_t ldc, rows, columns;
  float alpha, beta;
};

void store_row(const Target& to, std::int64_t row, const Vector (&sum)[2]) {
  float* c = to.c + row * to.ldc;
  if (to.columns == tile_columns) {
    for (int half = 0; half < 2; ++half) {
      Vector* out = reinterpret_cast<Vector*>(c + half * lanes);
      *out = to.beta == 0 ? to.alpha * sum[half] : to.alpha * sum[half] + to.beta * *out;
    }
    return;
  }
  const float* values = reinterpret_cast<const float*>(sum);
  for (std::int64_t j = 0; j < to.columns; ++j) {
    c[j] = to.beta == 0 ? to.alpha * values[j] : to.alpha * values[j] + to.beta * c[j];
  }
}

// The first `rows` of a's strip times b's strip.
template <int rows>
void multiply_strips(const float* a, const float* b, std::int64_t depth, const Target& to) {
  for (int r = 0; r < rows; ++r) {
    for (int j = 0; j < tile_columns; j += 16) __builtin_prefetch(to.c + r * to.ldc + j, 1);
  }
  Vector sum[rows][2] = {};
  for (std::int64_t d = 0; d < depth; ++d, a += tile_rows, b += tile_columns) {
    const Vector b0 = *reinterpret_cast<const Vector*>(b);
    const Vector b1 = *reinterpret_cast<const Vector*>(b + lanes);
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r) {
      sum[r][0] += a[r] * b0;
      sum[r][1] += a[r] * b1;
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r) {
    if (r < to.rows) store_row(to, r, sum[r]);
  }
}

// The last strip is seldom full: rows of a power of two leave a third of it or two.
void multiply_strip(const float* a, const float* b, std::int64_t depth, const Target& to) {
  constexpr int third = tile_rows / 3;
  if (to.rows <= third) return multiply_strips<third>(a, b, depth, to);
  if (to.rows <= 2 * third) return multiply_strips<2 * third>(a, b, depth, to);
  multiply_strips<tile_rows>(a, b, depth, to);
}

PackedFrom a_of(const PanelProduct& p, std::int64_t depth) {
  return p.transpose_a ? PackedFrom{p.a + depth * p.lda, 1, p.lda} : PackedFrom{p.a + depth, p.lda, 1};
}
PackedFrom b_of(const PanelProduct& p, std::int64_t depth) {
  return p.transpose_b ? PackedFrom{p.b + depth, p.ldb, 1} : PackedFrom{p.b + depth * p.ldb, 1, p.ldb};
}

struct Range {
  std::int64_t first, count;
};

// c's rows and columns += what one block of depths adds, or begins with. packed_a holds the rows' strips; packed_b is
// room for one strip of b, which serves all of them before the next one is packed.
void multiply_packed(const PanelProduct& p, const float* packed_a, Range rows, Range columns, Range depth,
                     float* packed_b) {
  const PackedFrom b = b_of(p, depth.first);
  const float beta = depth.first == 0 ? p.beta : 1.0f;
  const std::int64_t strips = (rows.count + tile_rows - 1) / tile_rows, end = columns.first + columns.count;
  for (std::int64_t j = columns.first; j < end; j += tile_columns) {
    pack_strip<tile_columns>(b, j, end, depth.count, packed_b);
    for (std::int64_t strip = 0; strip < strips; ++strip) {
      prefetch_strip<tile_columns>(b, j + tile_columns, end, depth.count, strip, strips);
      const std::int64_t i = strip * tile_rows;
      multiply_strip(packed_a + i * depth.count, packed_b, depth.count,
                     {p.c + (rows.first + i) * p.ldc + j, p.ldc, std::min<std::int64_t>(tile_rows, rows.count - i),
                      std::min<std::int64_t>(tile_columns, end - j), p.alpha, beta});
    }
  }
}

// For so few rows packing b would cost more than the product: rows of b are added up, or multiplied with a's, as they
// lie, for a few columns at a time.
constexpr std::int64_t few_rows = 2, few_rows_columns = 256;

void multiply_few_rows(const PanelProduct& p, Range all) {
  const std::int64_t a_row = p.transpose_a ? 1 : p.lda, a_depth = p.transpose_a ? p.lda : 1;
  const std::int64_t end = all.first + all.count;
  for (std::int64_t i = 0; i < p.m; ++i) {
    const float* a = p.a + i * a_row;
    for (std::int64_t first = all.first; first < end; first += few_rows_columns) {
      const std::int64_t columns = std::min(few_rows_columns, end - first);
      float sums[few_rows_columns] = {};
      for (std::int64_t d = 0; d < p.k && !p.transpose_b; ++d) {
        const float factor = a[d * a_depth];
        const float* b = p.b + d * p.ldb + first;
#pragma omp simd
        for (std::int64_t j = 0; j < columns; ++j) sums[j] += factor * b[j];
      }
      for (std::int64_t j = 0; j < columns && p.transpose_b; ++j) {
        const float* b = p.b + (first + j) * p.ldb;
        float dot = 0;
#pragma omp simd reduction(+ : dot)
        for (std::int64_t d = 0; d < p.k; ++d) dot += a[d * a_depth] * b[d];
        sums[j] = dot;
      }
      float* c = p.c + i * p.ldc + first;
      for (std::int64_t j = 0; j < columns; ++j) {
        c[j] = p.beta == 0 ? p.alpha * sums[j] : p.alpha * sums[j] + p.beta * c[j];
      }
    }
  }
}

}  // namespace

std::size_t builtin_product_scratch(std::int64_t m, std::int64_t k) {
  return static_cast<std::size_t>((round_up(m, tile_rows) + tile_columns) * std::min(k, block_depth));
}

void builtin_product(const PanelProduct& p, float* scratch) {
  if (p.m <= few_rows) return multiply_few_rows(p, {0, p.n});
  float* const packed_b = scratch;
  float* const packed_a = scratch + tile_columns * std::min(p.k, block_depth);
  for (std::int64_t first = 0; first < p.k; first += block_depth) {
    const std::int64_t depth = std::min(block_depth, p.k - first);
    pack_strips<tile_rows>(a_of(p, first), p.m, depth, packed_a);
    multiply_packed(p, packed_a, {0, p.m}, {0, p.n}, {first, depth}, packed_b);
  }
}

// What is packed of a at a time, and how its rows and b's columns are shared out. Nothing of this shows in the bits:
// each element of c is summed up in blocks of block_depth, whichever task it falls to.
struct BlockedProduct::Schedule {
  static constexpr std::int64_t chunk_floats = std::int64_t{1} << 20;
  std::int64_t chunk_depth, chunk_rows;    // of a, packed at a time: chunk_floats at most
  std::int64_t panel_rows, group_columns;  // of a task

  Schedule(std::int64_t m, std::int64_t n, std::int64_t k, int threads) {
    constexpr std::int64_t most_rows = 768;  // in the second-level cache or the third, at this depth
    const std::int64_t fit = chunk_floats / std::min(round_up(m, tile_rows), most_rows) / block_depth * block_depth;
    chunk_depth = std::min(k, std::max(fit, block_depth));
    chunk_rows =
        std::min(round_up(m, tile_rows), std::max<std::int64_t>(1, chunk_floats / chunk_depth / most_rows) * most_rows);
    const std::int64_t panels = (chunk_rows + most_rows - 1) / most_rows;
    panel_rows = round_up((chunk_rows + panels - 1) / panels, tile_rows);
    // Enough tasks that no thread waits long for the last one.
    const std::int64_t groups = std::max<std::int64_t>(1, (8 * threads + panels - 1) / panels);
    group_columns = std::min(round_up((n + groups - 1) / groups, tile_columns), std::int64_t{8} * tile_columns);
  }
};

// No less for a larger product: a workspace that was planned for all rows is given to what is left of them, too.
std::size_t BlockedProduct::scratch(std::int64_t m, std::int64_t k, int threads) {
  const std::int64_t packed = std::min(round_up(m, tile_rows) * k, Schedule::chunk_floats);
  return static_cast<std::size_t>(round_up(packed, 16) + threads * tile_columns * block_depth);
}

void BlockedProduct::run(const PanelProduct& p, int threads, float* scratch, const Finish& finish) {
  if (p.m <= few_rows) {
    const std::int64_t tasks = (p.n + few_rows_columns - 1) / few_rows_columns;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (std::int64_t task = 0; task < tasks; ++task) {
      const std::int64_t first = task * few_rows_columns, columns = std::min(few_rows_columns, p.n - first);
      multiply_few_rows(p, {first, columns});
      if (finish) finish(0, first, p.m, columns);
    }
    return;
  }
  const Schedule schedule(p.m, p.n, p.k, threads);
  float* const packed_a = scratch;
  float* const strips_of_b = scratch + round_up(schedule.chunk_rows * schedule.chunk_depth, 16);
  constexpr std::int64_t packed_rows = 16 * tile_rows;  // of a task of packing
#pragma omp parallel num_threads(threads)
  {
    int thread = 0;
#ifdef _OPENMP
    thread = omp_get_thread_num();
#endif
    float* const packed_b = strips_of_b + thread * tile_columns * block_depth;
    for (std::int64_t row = 0; row < p.m; row += schedule.chunk_rows) {
      const std::int64_t rows = std::min(schedule.chunk_rows, p.m - row), padded = round_up(rows, tile_rows);
      const std::int64_t pieces = (rows + packed_rows - 1) / packed_rows;
      const std::int64_t panels = (rows + schedule.panel_rows - 1) / schedule.panel_rows;
      const std::int64_t groups = (p.n + schedule.group_columns - 1) / schedule.group_columns;
      for (std::int64_t chunk = 0; chunk < p.k; chunk += schedule.chunk_depth) {
        const std::int64_t chunk_end = std::min(p.k, chunk + schedule.chunk_depth);
        const std::int64_t blocks = (chunk_end - chunk + block_depth - 1) / block_depth;
#pragma omp for schedule(static)
        for (std::int64_t task = 0; task < blocks * pieces; ++task) {
          const std::int64_t first = chunk + task / pieces * block_depth, begin = task % pieces * packed_rows;
          const std::int64_t depth = std::min(block_depth, chunk_end - first);
          PackedFrom from = a_of(p, first);
          from.data += (row + begin) * from.row_step;
          pack_strips<tile_rows>(from, std::min(packed_rows, rows - begin), depth,
                                 packed_a + (first - chunk) * padded + begin * depth);
        }
#pragma omp for schedule(dynamic)
        for (std::int64_t task = 0; task < panels * groups; ++task) {
          const std::int64_t panel = task / groups * schedule.panel_rows,
                             column = task % groups * schedule.group_columns;
          const Range task_rows{row + panel, std::min(schedule.panel_rows, rows - panel)};
          const Range columns{column, std::min(schedule.group_columns, p.n - column)};
          for (std::int64_t first = chunk; first < chunk_end; first += block_depth) {
            const std::int64_t depth = std::min(block_depth, chunk_end - first);
            multiply_packed(p, packed_a + (first - chunk) * padded + panel * depth, task_rows, columns, {first, depth},
                            packed_b);
          }
          if (finish && chunk_end == p.k) finish(task_rows.first, columns.first, task_rows.count, columns.count);
        }
      }
    }
  }
}

const char* builtin_product_vectors() {
#if defined(__AVX512F__)
  return "AVX-512";
#elif defined(__AVX2__)
  return "AVX2";
#else
  return "narrow";
#endif
}

}  // namespace greyhound::cpu
