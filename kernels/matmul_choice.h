// One of the library's algorithms, the products it was chosen for, and how that is written down. Internal.
#pragma once

#include <greyhound/kernels/matmul.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace greyhound {

// Everything that makes one call of the library differ from another. `from` is the matrix that beta multiplies, `to`
// the one that is written; strides are in elements, alignments in bytes (a power of two up to 16).
struct MatmulKey {
  enum Field {
    m,
    n,
    k,
    dtype,
    to_dtype,
    transpose_a,
    transpose_b,
    lda,
    ldb,
    ld_from,
    ld_to,
    align_a,
    align_b,
    align_from,
    align_to,
    bias,            // whether there is one
    device_scalars,  // whether alpha and beta are read from the device
    fields
  };

  std::array<std::int64_t, fields> values{};

  std::int64_t& operator[](Field field) { return values[field]; }
  std::int64_t operator[](Field field) const { return values[field]; }
  bool operator<(const MatmulKey& other) const { return values < other.values; }
};

struct MatmulChoice {
  std::string device;        // as the CUDA runtime names it
  std::int64_t library = 0;  // version of cuBLASLt
  MatmulKey key;
  std::array<std::uint64_t, 8> algorithm{};  // cublasLtMatmulAlgo_t
};

// One line, with its end.
std::string matmul_choice_line(const MatmulChoice& choice);

// The choices of a text of such lines. Throws a usage Error that names the line.
std::vector<MatmulChoice> parse_matmul_choices(std::string_view text);

namespace cuda {
void tune_matmul(const Context&, const Matmul&, Workspace&);
bool tune_new_matmuls(const Context&);  // whether they were tuned before
void stop_tuning_new_matmuls(const Context&, bool before) noexcept;
std::vector<MatmulChoice> matmul_choices(const Context&);
std::int64_t add_matmul_choices(const Context&, const std::vector<MatmulChoice>&);
}  // namespace cuda

}  // namespace greyhound
