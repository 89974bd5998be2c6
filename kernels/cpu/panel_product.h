// The single-threaded products that matmul is made of. Implemented by panel_product_onednn.cpp or, in builds without
// oneDNN, by panel_product_alone.cpp. Internal to the CPU backend.
#pragma once

#include <greyhound/core/dtype.h>
#include <greyhound/kernels/cpu/cache.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace greyhound::cpu {

inline std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// c [m, n] = alpha * op(a) [m, k] x op(b) [k, n] + beta * c, all fp32 and row-major; c is not read when beta is 0.
struct PanelProduct {
  bool transpose_a, transpose_b;
  std::int64_t m, n, k;
  float alpha;
  const float* a;
  std::int64_t lda;
  const float* b;
  std::int64_t ldb;
  float beta;
  float* c;
  std::int64_t ldc;
};

// Runs on the calling thread; `scratch` holds panel_product_scratch(...) floats. Returns false when the library failed.
bool panel_product(const PanelProduct& product, float* scratch);
std::size_t panel_product_scratch(std::int64_t m, std::int64_t n, std::int64_t k);

// The product of this project, for the processor that it was compiled for (panel_product_builtin.cpp): of a panel on
// the calling thread, and of whole matrices on several. An element's bits depend on neither. A row or two take no
// scratch.
void builtin_product(const PanelProduct& product, float* scratch);
std::size_t builtin_product_scratch(std::int64_t m, std::int64_t k);

class BlockedProduct {
 public:
  // What else is to be done with a part of c, once it is complete: (first row, first column, rows, columns).
  using Finish = std::function<void(std::int64_t, std::int64_t, std::int64_t, std::int64_t)>;

  // Floats that `run` needs.
  static std::size_t scratch(std::int64_t m, std::int64_t k, int threads);
  static void run(const PanelProduct& product, int threads, float* scratch, const Finish& finish);

 private:
  struct Schedule;
};

const char* builtin_product_vectors();  // "AVX2", ...

// Whether BlockedProduct is to be used for fp32.
bool prefers_builtin_product();

// The shape of a product of bf16 or fp16 panels with a dense fp32 result: c [m, n] = op(a) x op(b).
struct HalfShape {
  DType dtype;
  bool transpose_a, transpose_b;
  std::int64_t m, n, k, lda, ldb;
};

// A prepared product for one shape, where the processor and the library have instructions for its dtype; nullptr
// otherwise. Owned by the cache.
class HalfProduct;
const HalfProduct* find_half_product(Cache& cache, const HalfShape& shape);
std::size_t half_product_scratch_bytes(const HalfProduct& product);
// Runs on the calling thread; several threads may run one HalfProduct at once, each with its own scratch.
bool half_product(const HalfProduct& product, const void* a, const void* b, float* c, void* scratch);

// Holds the library to the calling thread, from before products are prepared until they are done.
class SingleThreadedLibrary {
 public:
  SingleThreadedLibrary();
  ~SingleThreadedLibrary();
  SingleThreadedLibrary(const SingleThreadedLibrary&) = delete;
  SingleThreadedLibrary& operator=(const SingleThreadedLibrary&) = delete;

 private:
  int threads_ = 1;
};

std::string panel_product_library();

}  // namespace greyhound::cpu
