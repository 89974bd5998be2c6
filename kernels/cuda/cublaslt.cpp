#include <greyhound/kernels/cuda/cublaslt.h>

#include <greyhound/core/cuda/cuda_check.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace greyhound::cuda {

namespace {

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw_runtime("cuBLASLt: ", what, ": ", cublasLtGetStatusName(status), ": ", cublasLtGetStatusString(status));
  }
}

struct Destroy {
  void operator()(cublasLtMatmulDesc_t desc) const { (void)cublasLtMatmulDescDestroy(desc); }
  void operator()(cublasLtMatrixLayout_t layout) const { (void)cublasLtMatrixLayoutDestroy(layout); }
  void operator()(cublasLtMatmulPreference_t preference) const { (void)cublasLtMatmulPreferenceDestroy(preference); }
};
template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;
using Operation = Owned<cublasLtMatmulDesc_t>;
using Layout = Owned<cublasLtMatrixLayout_t>;
using Preference = Owned<cublasLtMatmulPreference_t>;

cudaDataType_t cuda_type(std::int64_t dtype) {
  switch (static_cast<DType>(dtype)) {
    case DType::bf16: return CUDA_R_16BF;
    case DType::fp16: return CUDA_R_16F;
    default: return CUDA_R_32F;
  }
}

// The largest power of two, up to what any vector access asks for, that divides the address.
std::int64_t alignment_of(const void* pointer) {
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(pointer) | memory_alignment;
  return static_cast<std::int64_t>(address & (~address + 1));
}

// A row-major matrix is, to the library, the column-major transposed one.
Layout layout_of(std::int64_t dtype, std::int64_t rows, std::int64_t columns, std::int64_t row_stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, cuda_type(dtype), static_cast<std::uint64_t>(columns),
                                   static_cast<std::uint64_t>(rows), row_stride),
        "matrix layout");
  return Layout(layout);
}

template <class T>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  check(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof value), "product attribute");
}
template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value), "preference");
}

enum KeyField {
  m,
  n,
  k,
  lda,
  ldb,
  ld_from,
  ld_to,
  dtype,
  to_dtype,
  transposes,
  align_a,
  align_b,
  align_from,
  align_to,
  align_bias,
  device_scalars,
  scratch
};

std::int64_t stride_of(const ConstTensor& matrix) { return std::max(matrix.row_stride, matrix.columns()); }

}  // namespace

struct Products::Algorithm {
  Operation operation;
  Layout a, b, from, to;
  bool available = false;
  cublasLtMatmulAlgo_t algorithm{};
};

Products::Products() { check(cublasLtCreate(&handle_), "create"); }
Products::~Products() { (void)cublasLtDestroy(handle_); }

std::string Products::library() {
  const std::size_t version = cublasLtGetVersion();
  return concat("cuBLASLt ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

Products::Key Products::key_of(const Product& p) const {
  Key key{};
  key[m] = p.to.rows();
  key[n] = p.to.columns();
  key[k] = p.transpose_a ? p.a.rows() : p.a.columns();
  key[lda] = stride_of(p.a);
  key[ldb] = stride_of(p.b);
  key[ld_from] = stride_of(p.from);
  key[ld_to] = stride_of(p.to);
  key[dtype] = static_cast<std::int64_t>(p.a.dtype);
  key[to_dtype] = static_cast<std::int64_t>(p.to.dtype);
  key[transposes] = (p.transpose_a ? 1 : 0) + (p.transpose_b ? 2 : 0);
  key[align_a] = alignment_of(p.a.data);
  key[align_b] = alignment_of(p.b.data);
  key[align_from] = alignment_of(p.from.data);
  key[align_to] = alignment_of(p.to.data);
  key[align_bias] = p.bias == nullptr ? 0 : alignment_of(p.bias);
  key[device_scalars] = p.scalars != nullptr;
  key[scratch] = static_cast<std::int64_t>(p.workspace_bytes);
  return key;
}

std::unique_ptr<Products::Algorithm> Products::choose(const Product& p, const Key& key) const {
  auto chosen = std::make_unique<Algorithm>();
  // out^T = op(b)^T x op(a)^T: b is the library's first operand. fp32 is fp32: no TF32.
  cublasLtMatmulDesc_t desc = nullptr;
  check(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "product description");
  chosen->operation.reset(desc);
  set(chosen->operation, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(chosen->operation, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (p.scalars != nullptr) {
    set(chosen->operation, CUBLASLT_MATMUL_DESC_POINTER_MODE, std::int32_t{CUBLASLT_POINTER_MODE_DEVICE});
  }
  if (p.bias != nullptr) {
    set(chosen->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(chosen->operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(key[to_dtype]));
    set(chosen->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  }
  chosen->a = layout_of(key[dtype], p.a.rows(), p.a.columns(), key[lda]);
  chosen->b = layout_of(key[dtype], p.b.rows(), p.b.columns(), key[ldb]);
  chosen->from = layout_of(key[to_dtype], key[m], key[n], key[ld_from]);
  chosen->to = layout_of(key[to_dtype], key[m], key[n], key[ld_to]);

  cublasLtMatmulPreference_t created = nullptr;
  check(cublasLtMatmulPreferenceCreate(&created), "preference");
  const Preference preference(created);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{p.workspace_bytes});
  // Parts of a split sum are added in fp32, never in a 16-bit output.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(key[align_b]));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(key[align_a]));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(key[align_from]));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(key[align_to]));

  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, chosen->operation.get(), chosen->b.get(), chosen->a.get(),
                                     chosen->from.get(), chosen->to.get(), preference.get(), 1, &result, &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
      (status == CUBLAS_STATUS_SUCCESS && found == 0))
    return chosen;
  check(status, "choice of an algorithm");
  check(result.state, "choice of an algorithm");
  chosen->available = true;
  chosen->algorithm = result.algo;
  return chosen;
}

bool Products::multiply(const Context& context, const Product& p) {
  const Key key = key_of(p);
  auto at = algorithms_.find(key);
  if (at == algorithms_.end()) at = algorithms_.emplace(key, choose(p, key)).first;
  const Algorithm& chosen = *at->second;
  if (!chosen.available) return false;
  if (p.bias != nullptr) set(chosen.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  const float* alpha = p.scalars != nullptr ? p.scalars : &p.alpha;
  const float* beta = p.scalars != nullptr ? p.scalars + 1 : &p.beta;
  check(cublasLtMatmul(handle_, chosen.operation.get(), alpha, p.b.data, chosen.b.get(), p.a.data, chosen.a.get(), beta,
                       p.from.data, chosen.from.get(), p.to.data, chosen.to.get(), &chosen.algorithm, p.workspace,
                       p.workspace_bytes, stream_of(context.stream())),
        "product");
  return true;
}

}  // namespace greyhound::cuda
