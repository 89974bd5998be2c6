// Products without a library: K. Goto, R. van de Geijn, "Anatomy of high-performance matrix multiplication", 2008.
// Blocks of both operands are packed so that the innermost kernel, a block of c held in registers, reads them
// contiguously; vectors are the compiler's own, as wide as the processor it compiles for has them.
#include <greyhound/kernels/cpu/panel_product.h>

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
constexpr std::int64_t block_depth =
    256;  // a packed strip of b (256 x 16 floats, 16 KiB) stays in the first-level cache

typedef float Vector __attribute__((vector_size(lanes * sizeof(float)), aligned(4), may_alias));

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Element (row, depth) stands at row * row_step + depth * depth_step. Strips of `width` rows, depth-major, zero-padded:
// a zero there only ever meets results that are not stored.
void pack(const float* from, std::int64_t row_step, std::int64_t depth_step, std::int64_t rows, std::int64_t depth,
          int width, float* to) {
  for (std::int64_t first = 0; first < rows; first += width, to += width * depth) {
    const std::int64_t count = std::min<std::int64_t>(width, rows - first);
    if (count < width) std::fill(to, to + width * depth, 0.0f);
    const float* source = from + first * row_step;
    if (row_step == 1) {
      for (std::int64_t d = 0; d < depth; ++d) std::copy_n(source + d * depth_step, count, to + d * width);
    } else {
      for (std::int64_t r = 0; r < count; ++r) {
        for (std::int64_t d = 0; d < depth; ++d) to[d * width + r] = source[r * row_step + d * depth_step];
      }
    }
  }
}

// tile [tile_rows, tile_columns] = strip of a x strip of b.
void multiply_strips(const float* a, const float* b, std::int64_t depth, Vector (&tile)[tile_rows][2]) {
  Vector sum[tile_rows][2] = {};
  for (std::int64_t d = 0; d < depth; ++d, a += tile_rows, b += tile_columns) {
    const Vector b0 = *reinterpret_cast<const Vector*>(b);
    const Vector b1 = *reinterpret_cast<const Vector*>(b + lanes);
#pragma GCC unroll 12
    for (int r = 0; r < tile_rows; ++r) {
      sum[r][0] += a[r] * b0;
      sum[r][1] += a[r] * b1;
    }
  }
  for (int r = 0; r < tile_rows; ++r) {
    tile[r][0] = sum[r][0];
    tile[r][1] = sum[r][1];
  }
}

void store(const Vector (&tile)[tile_rows][2], std::int64_t rows, std::int64_t columns, float alpha, float beta,
           float* c, std::int64_t ldc) {
  for (std::int64_t r = 0; r < rows; ++r, c += ldc) {
    const float* sum = reinterpret_cast<const float*>(tile[r]);
    if (beta == 0) {
      for (std::int64_t j = 0; j < columns; ++j) c[j] = alpha * sum[j];
    } else {
      for (std::int64_t j = 0; j < columns; ++j) c[j] = alpha * sum[j] + beta * c[j];
    }
  }
}

// For so few rows packing b would cost more than the product: rows of b are added up, or multiplied with a's, as they
// lie.
constexpr std::int64_t few_rows = 2;

void multiply_few_rows(const PanelProduct& p) {
  const std::int64_t a_row = p.transpose_a ? 1 : p.lda, a_depth = p.transpose_a ? p.lda : 1;
  for (std::int64_t i = 0; i < p.m; ++i) {
    const float* a = p.a + i * a_row;
    float* c = p.c + i * p.ldc;
    for (std::int64_t j = 0; j < p.n; ++j) c[j] = p.beta == 0 ? 0.0f : p.beta * c[j];
    for (std::int64_t d = 0; d < p.k && !p.transpose_b; ++d) {
      const float factor = p.alpha * a[d * a_depth];
#pragma omp simd
      for (std::int64_t j = 0; j < p.n; ++j) c[j] += factor * p.b[d * p.ldb + j];
    }
    for (std::int64_t j = 0; j < p.n && p.transpose_b; ++j) {
      float dot = 0;
#pragma omp simd reduction(+ : dot)
      for (std::int64_t d = 0; d < p.k; ++d) dot += a[d * a_depth] * p.b[j * p.ldb + d];
      c[j] += p.alpha * dot;
    }
  }
}

}  // namespace

std::size_t panel_product_scratch(std::int64_t m, std::int64_t n, std::int64_t k) {
  return static_cast<std::size_t>((round_up(m, tile_rows) + round_up(n, tile_columns)) * std::min(k, block_depth));
}

bool panel_product(const PanelProduct& p, float* scratch) {
  if (p.m <= few_rows) {
    multiply_few_rows(p);
    return true;
  }
  float* const packed_a = scratch;
  float* const packed_b = scratch + round_up(p.m, tile_rows) * std::min(p.k, block_depth);
  const std::int64_t a_row = p.transpose_a ? 1 : p.lda, a_depth = p.transpose_a ? p.lda : 1;
  const std::int64_t b_row = p.transpose_b ? p.ldb : 1, b_depth = p.transpose_b ? 1 : p.ldb;
  for (std::int64_t first = 0; first < p.k; first += block_depth) {
    const std::int64_t depth = std::min(block_depth, p.k - first);
    const float beta = first == 0 ? p.beta : 1.0f;
    pack(p.a + first * a_depth, a_row, a_depth, p.m, depth, tile_rows, packed_a);
    pack(p.b + first * b_depth, b_row, b_depth, p.n, depth, tile_columns, packed_b);
    for (std::int64_t j = 0; j < p.n; j += tile_columns) {
      for (std::int64_t i = 0; i < p.m; i += tile_rows) {
        Vector tile[tile_rows][2];
        multiply_strips(packed_a + i * depth, packed_b + j * depth, depth, tile);
        store(tile, std::min<std::int64_t>(tile_rows, p.m - i), std::min<std::int64_t>(tile_columns, p.n - j), p.alpha,
              beta, p.c + i * p.ldc + j, p.ldc);
      }
    }
  }
  return true;
}

class HalfProduct {};
const HalfProduct* find_half_product(Cache&, const HalfShape&) { return nullptr; }
std::size_t half_product_scratch_bytes(const HalfProduct&) { return 0; }
bool half_product(const HalfProduct&, const void*, const void*, float*, void*) { return false; }

SingleThreadedLibrary::SingleThreadedLibrary() = default;
SingleThreadedLibrary::~SingleThreadedLibrary() = default;

std::string panel_product_library() { return "built-in blocked product"; }

}  // namespace greyhound::cpu
