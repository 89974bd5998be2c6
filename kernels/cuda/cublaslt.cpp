#include <greyhound/kernels/cuda/cublaslt.h>

#include <greyhound/core/cuda/cuda_check.h>
#include <greyhound/kernels/cuda/checksum.h>
#include <greyhound/kernels/cuda/fastest.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

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

// The largest power of two up to 16 that divides the address. No access is wider and no tensor map asks for more, so
// that a choice made on one buffer holds for every other that starts at 16 bytes, the rows of a chunk among them.
std::int64_t alignment_of(const void* pointer) {
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(pointer) | 16;
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

std::int64_t stride_of(const ConstTensor& matrix) { return std::max(matrix.row_stride, matrix.columns()); }

MatmulKey key_of(const Product& p) {
  using Key = MatmulKey;
  Key key;
  key[Key::m] = p.to.rows();
  key[Key::n] = p.to.columns();
  key[Key::k] = p.transpose_a ? p.a.rows() : p.a.columns();
  key[Key::dtype] = static_cast<std::int64_t>(p.a.dtype);
  key[Key::to_dtype] = static_cast<std::int64_t>(p.to.dtype);
  key[Key::transpose_a] = p.transpose_a;
  key[Key::transpose_b] = p.transpose_b;
  key[Key::lda] = stride_of(p.a);
  key[Key::ldb] = stride_of(p.b);
  key[Key::ld_from] = stride_of(p.from);
  key[Key::ld_to] = stride_of(p.to);
  key[Key::align_a] = alignment_of(p.a.data);
  key[Key::align_b] = alignment_of(p.b.data);
  key[Key::align_from] = alignment_of(p.from.data);
  key[Key::align_to] = alignment_of(p.to.data);
  key[Key::bias] = p.bias != nullptr;
  key[Key::device_scalars] = p.scalars != nullptr;
  return key;
}

std::string describe(const MatmulKey& key) {
  return concat("[", key[MatmulKey::m], ", ", key[MatmulKey::k], "] x [", key[MatmulKey::k], ", ", key[MatmulKey::n],
                "]");
}

// Whether both cut the sum over K into the same parts, and add these up alike.
bool cut_alike(const cublasLtMatmulAlgo_t& one, const cublasLtMatmulAlgo_t& other) {
  for (const auto attribute : {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME}) {
    std::uint32_t values[2] = {};
    std::size_t written = 0;
    check(cublasLtMatmulAlgoConfigGetAttribute(&one, attribute, &values[0], sizeof values[0], &written), "algorithm");
    check(cublasLtMatmulAlgoConfigGetAttribute(&other, attribute, &values[1], sizeof values[1], &written), "algorithm");
    if (values[0] != values[1]) return false;
  }
  return true;
}

// Whether the library means that it has nothing for this product.
bool offers_nothing(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
}

}  // namespace

// The library's descriptions of a product, and the algorithm that makes it.
struct Products::Call {
  Operation operation;
  Layout a, b, from, to;
  bool available = false;
  cublasLtMatmulAlgo_t algorithm{};

  Call(const Product& p, const MatmulKey& key) {
    using Key = MatmulKey;
    // out^T = op(b)^T x op(a)^T: b is the library's first operand. fp32 is fp32: no TF32.
    cublasLtMatmulDesc_t desc = nullptr;
    check(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "product description");
    operation.reset(desc);
    set(operation, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(operation, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.scalars != nullptr) {
      set(operation, CUBLASLT_MATMUL_DESC_POINTER_MODE, std::int32_t{CUBLASLT_POINTER_MODE_DEVICE});
    }
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE,
        p.bias != nullptr ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
    if (p.bias != nullptr) {
      set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(key[Key::to_dtype]));
      set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    }
    a = layout_of(key[Key::dtype], p.a.rows(), p.a.columns(), key[Key::lda]);
    b = layout_of(key[Key::dtype], p.b.rows(), p.b.columns(), key[Key::ldb]);
    from = layout_of(key[Key::to_dtype], key[Key::m], key[Key::n], key[Key::ld_from]);
    to = layout_of(key[Key::to_dtype], key[Key::m], key[Key::n], key[Key::ld_to]);
  }

  // The heuristic's candidates, in its order; empty where it has none.
  std::vector<cublasLtMatmulAlgo_t> candidates(cublasLtHandle_t handle, const MatmulKey& key, int at_most) const {
    using Key = MatmulKey;
    cublasLtMatmulPreference_t created = nullptr;
    check(cublasLtMatmulPreferenceCreate(&created), "preference");
    const Preference preference(created);
    const auto alignment = [&](cublasLtMatmulPreferenceAttributes_t attribute, Key::Field field) {
      set(preference, attribute, static_cast<std::uint32_t>(key[field]));
    };
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{library_workspace_bytes});
    // Parts of a split sum are added in fp32, never in a 16-bit output, and in a fixed order.
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, Key::align_b);
    alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, Key::align_a);
    alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, Key::align_from);
    alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, Key::align_to);

    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(at_most));
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, operation.get(), b.get(), a.get(), from.get(), to.get(),
                                       preference.get(), at_most, results.data(), &found);
    if (offers_nothing(status)) return {};
    check(status, "choice of an algorithm");
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (int i = 0; i < found; ++i) {
      if (results[static_cast<std::size_t>(i)].state == CUBLAS_STATUS_SUCCESS) {
        algorithms.push_back(results[static_cast<std::size_t>(i)].algo);
      }
    }
    return algorithms;
  }

  void check_loaded(cublasLtHandle_t handle, const MatmulKey& key, const cublasLtMatmulAlgo_t& loaded) const {
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status =
        cublasLtMatmulAlgoCheck(handle, operation.get(), b.get(), a.get(), from.get(), to.get(), &loaded, &result);
    const char* wrong = status != CUBLAS_STATUS_SUCCESS                  ? cublasLtGetStatusString(status)
                        : result.state != CUBLAS_STATUS_SUCCESS          ? cublasLtGetStatusString(result.state)
                        : result.workspaceSize > library_workspace_bytes ? "it needs more workspace"
                                                                         : nullptr;
    if (wrong == nullptr) return;
    throw_runtime("matmul: ", library(), " refuses the algorithm chosen for ", describe(key), ": ", wrong,
                  "; tune again instead of loading this choice");
  }
};

Products::Products() { check(cublasLtCreate(&handle_), "create"); }
Products::~Products() { (void)cublasLtDestroy(handle_); }

std::string Products::library() {
  const std::size_t version = cublasLtGetVersion();
  return concat("cuBLASLt ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

Products::Call& Products::prepared(const Product& product, const MatmulKey& key) {
  const auto at = calls_.find(key);
  if (at != calls_.end()) return *at->second;
  auto call = std::make_unique<Call>(product, key);
  const auto choice = choices_.find(key);
  if (choice != choices_.end()) {
    call->check_loaded(handle_, key, choice->second);
    call->available = true;
    call->algorithm = choice->second;
  } else {
    const std::vector<cublasLtMatmulAlgo_t> first = call->candidates(handle_, key, 1);
    call->available = !first.empty();
    if (call->available) call->algorithm = first[0];
  }
  return *calls_.emplace(key, std::move(call)).first->second;
}

cublasStatus_t Products::enqueue(const Context& context, const Product& p, const Call& call,
                                 const cublasLtMatmulAlgo_t& algorithm) const {
  if (p.bias != nullptr) set(call.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  const float* alpha = p.scalars != nullptr ? p.scalars : &p.alpha;
  const float* beta = p.scalars != nullptr ? p.scalars + 1 : &p.beta;
  return cublasLtMatmul(handle_, call.operation.get(), alpha, p.b.data, call.b.get(), p.a.data, call.a.get(), beta,
                        p.from.data, call.from.get(), p.to.data, call.to.get(), &algorithm, p.workspace,
                        library_workspace_bytes, stream_of(context.stream()));
}

bool Products::multiply(const Context& context, const Product& p) {
  const MatmulKey key = key_of(p);
  if (tunes_new_ && choices_.count(key) == 0) tune(context, p);
  const Call& call = prepared(p, key);
  if (!call.available) return false;
  check(enqueue(context, p, call, call.algorithm), "product");
  return true;
}

// The candidates that start and give the bits of the first that does, on these operands: those that cut the sum over K
// alike, whatever their tiles.
std::vector<cublasLtMatmulAlgo_t> Products::alike(const Context& context, const Product& p, const Call& call,
                                                  const std::vector<cublasLtMatmulAlgo_t>& algorithms) const {
  const cudaStream_t stream = stream_of(context.stream());
  const bool adds_to_out = p.beta != 0 && p.from.data == p.to.data;
  const std::size_t width = static_cast<std::size_t>(p.to.columns()) * size_of(p.to.dtype);
  const std::size_t pitch = static_cast<std::size_t>(stride_of(p.to)) * size_of(p.to.dtype);
  std::vector<cublasLtMatmulAlgo_t> same;
  std::uint64_t first = 0;
  for (const cublasLtMatmulAlgo_t& algorithm : algorithms) {
    if (!same.empty() && !cut_alike(same.front(), algorithm)) continue;
    if (adds_to_out) {
      cuda::check(cudaMemset2DAsync(p.to.data, pitch, 0, width, static_cast<std::size_t>(p.to.rows()), stream),
                  "tuning");
    }
    if (enqueue(context, p, call, algorithm) != CUBLAS_STATUS_SUCCESS) continue;
    const std::uint64_t bits = checksum(stream, p.to, p.workspace);
    if (same.empty()) first = bits;
    if (bits == first) same.push_back(algorithm);
  }
  return same;
}

bool Products::tune(const Context& context, const Product& p) {
  constexpr int most_candidates = 100;
  const MatmulKey key = key_of(p);
  const Call call(p, key);
  const std::vector<cublasLtMatmulAlgo_t> algorithms =
      alike(context, p, call, call.candidates(handle_, key, most_candidates));
  const int best = fastest(stream_of(context.stream()), static_cast<int>(algorithms.size()), [&](int i) {
    return enqueue(context, p, call, algorithms[static_cast<std::size_t>(i)]) == CUBLAS_STATUS_SUCCESS;
  });
  (void)cudaGetLastError();  // of candidates that did not start
  if (best < 0) return false;
  choose(key, algorithms[static_cast<std::size_t>(best)]);
  return true;
}

void Products::choose(const MatmulKey& key, const cublasLtMatmulAlgo_t& algorithm) {
  choices_[key] = algorithm;
  calls_.erase(key);
}

}  // namespace greyhound::cuda
