// The language-model head in a training step in the manner of llm.c (https://github.com/karpathy/llm.c): bf16, raw
// cudaMalloc buffers, int32 targets, a stream of its own, a vocabulary of 50257 padded to 50304, gradients accumulated
// over micro-batches. First as such a trainer has it: logits [B*T, Vp] by cuBLASLt, a fused classifier kernel that
// overwrites them with their gradient, two more products. Then by one call of chunked_linear_cross_entropy. Checks that
// both give the same, and prints memory and time of each.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <greyhound/loss/loss.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace loss = greyhound::loss;
using greyhound::Device;
using greyhound::DType;
using greyhound::tensor;
using floatX = __nv_bfloat16;

constexpr int B = 8, T = 1024, C = 768, V = 50257, Vp = 50304, micro_batches = 2;
constexpr std::size_t lt_workspace_bytes = std::size_t{32} << 20;

void check(cudaError_t status) {
  if (status != cudaSuccess) greyhound::throw_runtime("CUDA: ", cudaGetErrorString(status));
}
void check(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) greyhound::throw_runtime("cuBLASLt: ", cublasLtGetStatusString(status));
}

template <class Element>
Element* device_alloc(std::size_t count) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, count * sizeof(Element)));
  return static_cast<Element*>(memory);
}

// What a trainer holds at its head: activations of the final layernorm, tied embedding, targets, gradients.
struct Head {
  floatX *inp, *wte, *dinp;  // [micro_batches][B*T, C], [Vp, C], [B*T, C] of the last micro-batch
  int* targets;              // [micro_batches][B*T]
  float* dwte;               // [Vp, C]
};

// Pseudo-random values in [-scale, scale).
__global__ void fill_kernel(floatX* out, std::size_t count, float scale, unsigned seed) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    unsigned x = static_cast<unsigned>(i) * 2654435761u + seed;
    x = (x ^ (x >> 16)) * 0x45d9f3bu;
    x = (x ^ (x >> 16)) * 0x45d9f3bu;
    out[i] = __float2bfloat16(scale * (static_cast<float>((x ^ (x >> 16)) >> 8) * 0x1p-23f - 1.0f));
  }
}

// ---- As it is without Greyhound ----

// out [m, n] = op(a) x op(b) + beta out, row-major; the library is column-major and computes the transposed product.
class Product {
 public:
  Product(cublasLtHandle_t lt, int m, int n, int k, bool transpose_a, bool transpose_b, cudaDataType out_type)
      : lt_(lt) {
    const cublasOperation_t first = transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    check(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    check(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    b_ = layout(CUDA_R_16BF, transpose_b ? n : k, transpose_b ? k : n);
    a_ = layout(CUDA_R_16BF, transpose_a ? k : m, transpose_a ? m : k);
    out_ = layout(out_type, m, n);
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference));
    check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &lt_workspace_bytes, sizeof lt_workspace_bytes));
    int found = 0;
    check(cublasLtMatmulAlgoGetHeuristic(lt, operation_, b_, a_, out_, out_, preference, 1, &choice_, &found));
    check(cublasLtMatmulPreferenceDestroy(preference));
    if (found == 0) greyhound::throw_runtime("cuBLASLt has no such product");
  }
  void operator()(const floatX* a, const floatX* b, void* out, float beta, void* workspace, cudaStream_t stream) const {
    const float alpha = 1;
    check(cublasLtMatmul(lt_, operation_, &alpha, b, b_, a, a_, &beta, out, out_, out, out_, &choice_.algo, workspace,
                         lt_workspace_bytes, stream));
  }

 private:
  static cublasLtMatrixLayout_t layout(cudaDataType type, int rows, int columns) {
    cublasLtMatrixLayout_t made = nullptr;
    check(cublasLtMatrixLayoutCreate(&made, type, static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows),
                                     columns));
    return made;
  }
  cublasLtHandle_t lt_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_, b_, out_;
  cublasLtMatmulHeuristicResult_t choice_{};
};

// The maximum or the sum over the block, in every thread.
template <class Combine>
__device__ float block_all(float value, Combine combine) {
  __shared__ float shared[32];
  for (int offset = 16; offset > 0; offset /= 2) value = combine(value, __shfl_xor_sync(~0u, value, offset));
  __syncthreads();  // the previous reduction has been read
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[threadIdx.x % 32];
  for (int offset = 16; offset > 0; offset /= 2) value = combine(value, __shfl_xor_sync(~0u, value, offset));
  return value;
}

// One block of 1024 threads per row: losses[row], and logits overwritten with dloss * (softmax - onehot); 0 in the
// padding.
__global__ void __launch_bounds__(1024)
    fused_classifier_kernel(floatX* logits, float* losses, const int* targets, float dloss) {
  floatX* z = logits + blockIdx.x * std::size_t{Vp};
  const int y = targets[blockIdx.x];
  float most = -INFINITY, sum = 0;
  for (int j = threadIdx.x; j < V; j += 1024) {
    const float value = __bfloat162float(z[j]);
    if (value > most) {
      sum *= expf(most - value);
      most = value;
    }
    sum += expf(value - most);
  }
  const float row_most = block_all(most, [](float a, float b) { return fmaxf(a, b); });
  sum = block_all(sum * expf(most - row_most), [](float a, float b) { return a + b; });
  if (threadIdx.x == 0) losses[blockIdx.x] = row_most + logf(sum) - __bfloat162float(z[y]);
  __syncthreads();  // z[y] has been read
  for (int j = threadIdx.x; j < Vp; j += 1024) {
    const float p = j < V ? expf(__bfloat162float(z[j]) - row_most) / sum : 0.0f;
    z[j] = __float2bfloat16((p - (j == y ? 1.0f : 0.0f)) * dloss);
  }
}

class LlmcHead {
 public:
  static constexpr std::size_t bytes = std::size_t{B * T} * Vp * sizeof(floatX) + lt_workspace_bytes;

  explicit LlmcHead(cublasLtHandle_t lt)
      : forward_(lt, B * T, Vp, C, false, true, CUDA_R_16BF),
        backward_input_(lt, B * T, C, Vp, false, false, CUDA_R_16BF),
        backward_weight_(lt, Vp, C, B * T, true, false, CUDA_R_32F),
        logits_(device_alloc<floatX>(std::size_t{B * T} * Vp)),
        losses_(device_alloc<float>(std::size_t{micro_batches} * B * T)),
        workspace_(device_alloc<char>(lt_workspace_bytes)) {}

  void step(const Head& head, cudaStream_t stream) const {
    for (int micro = 0; micro < micro_batches; ++micro) {
      const floatX* inp = head.inp + std::size_t{B * T} * C * micro;
      forward_(inp, head.wte, logits_, 0, workspace_, stream);
      fused_classifier_kernel<<<B * T, 1024, 0, stream>>>(logits_, losses_ + B * T * micro,
                                                          head.targets + B * T * micro, 1.0f / (B * T * micro_batches));
      check(cudaGetLastError());
      backward_input_(logits_, head.wte, head.dinp, 0, workspace_, stream);
      backward_weight_(logits_, inp, head.dwte, micro == 0 ? 0.0f : 1.0f, workspace_, stream);
    }
  }
  double mean_loss() const {
    std::vector<float> host(std::size_t{micro_batches} * B * T);
    check(cudaMemcpy(host.data(), losses_, host.size() * sizeof(float), cudaMemcpyDeviceToHost));
    double sum = 0;
    for (const float value : host) sum += value;
    return sum / static_cast<double>(host.size());
  }

 private:
  Product forward_, backward_input_, backward_weight_;
  floatX* logits_;
  float* losses_;
  char* workspace_;
};

// ---- With Greyhound ----

class GreyhoundHead {
 public:
  explicit GreyhoundHead(cudaStream_t stream)
      : context_(greyhound::Context::cuda(0, stream)),
        plan_(loss::plan_chunked_linear_loss(context_, {B * T, C, V, DType::bf16, Vp})),
        workspace_(device_alloc<char>(plan_.workspace_bytes), plan_.workspace_bytes, context_.device()),
        sums_(context_, device_alloc<char>(loss::LossSums::bytes)),
        denominator_(device_alloc<float>(1)) {
    const float tokens = B * T * micro_batches;
    check(cudaMemcpyAsync(denominator_, &tokens, sizeof tokens, cudaMemcpyHostToDevice, stream));
  }
  std::size_t bytes() const { return plan_.workspace_bytes; }

  void step(const Head& head) {
    const Device gpu = context_.device();
    const greyhound::Tensor dwte = tensor(head.dwte, DType::fp32, {Vp, C}, 0, gpu);
    loss::CrossEntropyOptions options;
    options.denominator = tensor(denominator_, DType::fp32, {1}, 0, gpu);  // tokens of all micro-batches
    sums_.reset(context_);
    for (int micro = 0; micro < micro_batches; ++micro) {
      loss::LinearInputs in;
      in.inputs = tensor(head.inp + std::size_t{B * T} * C * micro, DType::bf16, {B, T, C}, 0, gpu);
      in.weight = tensor(head.wte, DType::bf16, {Vp, C}, 0, gpu);
      in.targets = tensor(head.targets + B * T * micro, DType::int32, {B, T}, 0, gpu);
      loss::LinearGradients gradients;
      gradients.input = loss::overwrite(tensor(head.dinp, DType::bf16, {B, T, C}, 0, gpu));
      gradients.weight = micro == 0 ? loss::overwrite(dwte) : loss::accumulate(dwte);
      loss::chunked_linear_cross_entropy(context_, plan_, in, options, gradients, workspace_, sums_);
    }
  }
  double mean_loss() const { return sums_.read(context_).mean_loss(); }

 private:
  greyhound::Context context_;
  loss::Plan plan_;
  greyhound::Workspace workspace_;
  loss::LossSums sums_;
  float* denominator_;
};

// ---- Comparison ----

template <class Step>
float milliseconds(cudaStream_t stream, Step&& step) {
  constexpr int repeats = 10;
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  step();  // chooses the products' algorithms
  check(cudaEventRecord(begin, stream));
  for (int i = 0; i < repeats; ++i) step();
  check(cudaEventRecord(end, stream));
  check(cudaEventSynchronize(end));
  float elapsed = 0;
  check(cudaEventElapsedTime(&elapsed, begin, end));
  check(cudaEventDestroy(begin));
  check(cudaEventDestroy(end));
  return elapsed / repeats;
}

float widen(float value) { return value; }
float widen(floatX value) { return __bfloat162float(value); }

template <class Element>
std::vector<Element> on_host(const Element* device, std::size_t count) {
  std::vector<Element> host(count);
  check(cudaMemcpy(host.data(), device, count * sizeof(Element), cudaMemcpyDeviceToHost));
  return host;
}

// |a - b| / |a| of whole gradients, in the Euclidean norm.
template <class Element>
double difference(const std::vector<Element>& a, const std::vector<Element>& b) {
  double apart = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = widen(a[i]), y = widen(b[i]);
    apart += (x - y) * (x - y);
    size += x * x;
  }
  return std::sqrt(apart / size);
}

int main() try {
  if (greyhound::cuda_device_count() == 0) {
    std::printf("skipped: no CUDA device: %s\n", greyhound::cuda_unavailable_reason().c_str());
    return 0;
  }
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cublasLtHandle_t lt;
  check(cublasLtCreate(&lt));
  const std::size_t tokens = std::size_t{micro_batches} * B * T, dinp_size = std::size_t{B * T} * C;
  const std::size_t wte_size = std::size_t{Vp} * C;
  const Head head{device_alloc<floatX>(tokens * C), device_alloc<floatX>(wte_size), device_alloc<floatX>(dinp_size),
                  device_alloc<int>(tokens), device_alloc<float>(wte_size)};
  fill_kernel<<<1024, 256, 0, stream>>>(head.inp, tokens * C, 1.7f, 1);
  fill_kernel<<<1024, 256, 0, stream>>>(head.wte, wte_size, 0.1f, 2);
  check(cudaGetLastError());
  std::vector<int> targets(tokens);
  for (std::size_t i = 0; i < tokens; ++i) targets[i] = static_cast<int>(i * 7919 % V);
  check(cudaMemcpyAsync(head.targets, targets.data(), tokens * sizeof(int), cudaMemcpyHostToDevice, stream));

  const LlmcHead before(lt);
  const float ms_before = milliseconds(stream, [&] { before.step(head, stream); });
  const double loss_before = before.mean_loss();
  const std::vector<floatX> dinp = on_host(head.dinp, dinp_size);
  const std::vector<float> dwte = on_host(head.dwte, wte_size);

  // Nothing of the first way's results may be left for the second to be right with.
  check(cudaMemsetAsync(head.dinp, 0xff, dinp_size * sizeof(floatX), stream));
  check(cudaMemsetAsync(head.dwte, 0xff, wte_size * sizeof(float), stream));
  GreyhoundHead after(stream);
  const float ms_after = milliseconds(stream, [&] { after.step(head); });
  const double loss_after = after.mean_loss();
  const double apart_loss = std::fabs(loss_after - loss_before) / loss_before;
  const double apart_dinp = difference(dinp, on_host(head.dinp, dinp_size));
  const double apart_dwte = difference(dwte, on_host(head.dwte, wte_size));

  constexpr double mib = 1 << 20;
  std::printf("B %d, T %d, C %d, V %d of %d, %d micro-batches\n", B, T, C, V, Vp, micro_batches);
  std::printf("logits and classifier:        loss %.6f, %8.1f MiB, %.3f ms per step\n", loss_before,
              LlmcHead::bytes / mib, ms_before);
  std::printf("chunked_linear_cross_entropy: loss %.6f, %8.1f MiB, %.3f ms per step\n", loss_after, after.bytes() / mib,
              ms_after);
  std::printf("saves %.1f MiB; loss apart by %.1e, dinp by %.1e, dwte by %.1e\n",
              (static_cast<double>(LlmcHead::bytes) - static_cast<double>(after.bytes())) / mib, apart_loss, apart_dinp,
              apart_dwte);
  // Both round logits and their gradients to bf16, 8 bits: a few of them, made in another order, to the other side.
  const bool agree = apart_loss < 1e-4 && apart_dinp < 1e-2 && apart_dwte < 1e-2;  // false for NaN
  if (!agree) std::fprintf(stderr, "the two disagree\n");
  return agree ? 0 : 1;
} catch (const greyhound::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return error.exit_code();
}
