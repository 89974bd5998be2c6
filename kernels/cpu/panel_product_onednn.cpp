// Products of builds with oneDNN: its matmul primitives for bf16 where the processor multiplies bf16; for fp32 its
// sgemm in binaries that are to run on any processor, our own product in those that are compiled for one.
#include <greyhound/kernels/cpu/panel_product.h>

#include <oneapi/dnnl/dnnl.hpp>

#ifdef _OPENMP
#include <omp.h>
#endif

#include <map>
#include <tuple>

namespace greyhound::cpu {

// oneDNN asks the processor what it has when the program runs; ours is as good as what it was compiled for. Figures:
// docs/performance.md.
bool prefers_builtin_product() {
#if defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__)
  return true;
#else
  return false;
#endif
}

bool panel_product(const PanelProduct& p, float* scratch) {
  // The library adds the terms of a single row one by one to what stands in c.
  const bool adds_in_place = p.m == 1 && p.beta != 0;
  if (prefers_builtin_product() || adds_in_place) {
    builtin_product(p, scratch);
    return true;
  }
  return dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, p.alpha, p.a, p.lda, p.b,
                    p.ldb, p.beta, p.c, p.ldc) == dnnl_success;
}

std::size_t panel_product_scratch(std::int64_t m, std::int64_t, std::int64_t k) {
  return prefers_builtin_product() ? builtin_product_scratch(m, k) : 0;
}

class HalfProduct {
 public:
  dnnl::engine engine;
  dnnl::matmul::primitive_desc description;
  dnnl::matmul primitive;
};

namespace {

using dnnl::memory;

const char* name_of_isa(dnnl::cpu_isa isa) {
  switch (isa) {
    case dnnl::cpu_isa::sse41: return "sse41";
    case dnnl::cpu_isa::avx: return "avx";
    case dnnl::cpu_isa::avx2: return "avx2";
    case dnnl::cpu_isa::avx2_vnni: return "avx2_vnni";
    case dnnl::cpu_isa::avx512_core: return "avx512_core";
    case dnnl::cpu_isa::avx512_core_vnni: return "avx512_core_vnni";
    case dnnl::cpu_isa::avx512_core_bf16: return "avx512_core_bf16";
    case dnnl::cpu_isa::avx512_core_amx: return "avx512_core_amx";
    default: return "other";
  }
}

// cpu_isa values are sets of bits: every processor with AMX has AVX512-BF16's.
bool multiplies_bf16() {
  const unsigned have = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const unsigned need = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (have & need) == need;
}

using HalfKey = std::tuple<bool, bool, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

// An empty entry remembers that the library has no good product for that shape.
struct HalfProducts {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::map<HalfKey, std::unique_ptr<HalfProduct>> by_shape;
};

std::unique_ptr<HalfProduct> prepare(const dnnl::engine& engine, const HalfShape& s) {
  // A transposed operand is the same memory with its two strides exchanged.
  const memory::dims a_strides = s.transpose_a ? memory::dims{1, s.lda} : memory::dims{s.lda, 1};
  const memory::dims b_strides = s.transpose_b ? memory::dims{1, s.ldb} : memory::dims{s.ldb, 1};
  const memory::desc a({s.m, s.k}, memory::data_type::bf16, a_strides);
  const memory::desc b({s.k, s.n}, memory::data_type::bf16, b_strides);
  const memory::desc c({s.m, s.n}, memory::data_type::f32, memory::dims{s.n, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  try {
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), attributes, engine);
    // The reference implementation is far slower than converting to fp32.
    if (std::string(description.impl_info_str()).rfind("ref", 0) == 0) return nullptr;
    return std::make_unique<HalfProduct>(HalfProduct{engine, description, dnnl::matmul(description)});
  } catch (const dnnl::error&) {
    return nullptr;  // oneDNN has no such product for this processor
  }
}

}  // namespace

const HalfProduct* find_half_product(Cache& cache, const HalfShape& s) {
  if (s.dtype != DType::bf16 || !multiplies_bf16()) return nullptr;
  if (!cache.half_products) cache.half_products = std::make_shared<HalfProducts>();
  HalfProducts& products = *static_cast<HalfProducts*>(cache.half_products.get());
  const HalfKey key{s.transpose_a, s.transpose_b, s.m, s.n, s.k, s.lda, s.ldb};
  auto found = products.by_shape.find(key);
  if (found == products.by_shape.end()) found = products.by_shape.emplace(key, prepare(products.engine, s)).first;
  return found->second.get();
}

std::size_t half_product_scratch_bytes(const HalfProduct& product) {
  return product.description.scratchpad_desc().get_size();
}

bool half_product(const HalfProduct& product, const void* a, const void* b, float* c, void* scratch) {
  const auto& description = product.description;
  try {
    dnnl::stream stream(product.engine);
    // oneDNN's handles are not const; operands are only read.
    product.primitive.execute(
        stream, {{DNNL_ARG_SRC, memory(description.src_desc(), product.engine, const_cast<void*>(a))},
                 {DNNL_ARG_WEIGHTS, memory(description.weights_desc(), product.engine, const_cast<void*>(b))},
                 {DNNL_ARG_DST, memory(description.dst_desc(), product.engine, c)},
                 {DNNL_ARG_SCRATCHPAD, memory(description.scratchpad_desc(), product.engine, scratch)}});
    stream.wait();
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
}

// oneDNN runs on one thread inside a parallel region, but a region whose team is one thread does not count as one: it
// would use all threads of the process there, and other bits would come out.
SingleThreadedLibrary::SingleThreadedLibrary() {
#ifdef _OPENMP
  threads_ = omp_get_max_threads();
  omp_set_num_threads(1);
#endif
}

SingleThreadedLibrary::~SingleThreadedLibrary() {
#ifdef _OPENMP
  omp_set_num_threads(threads_);
#endif
}

std::string panel_product_library() {
  const dnnl_version_t* version = dnnl::version();
  const std::string onednn = concat("oneDNN ", version->major, ".", version->minor, ".", version->patch, " (",
                                    name_of_isa(dnnl::get_effective_cpu_isa()), ")");
  return prefers_builtin_product() ? concat(onednn, ", fp32 built-in (", builtin_product_vectors(), ")") : onednn;
}

}  // namespace greyhound::cpu
