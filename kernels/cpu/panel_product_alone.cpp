// Products of builds without oneDNN: our own, all in fp32.
#include <greyhound/kernels/cpu/panel_product.h>

namespace greyhound::cpu {

bool prefers_builtin_product() { return true; }

bool panel_product(const PanelProduct& product, float* scratch) {
  builtin_product(product, scratch);
  return true;
}

std::size_t panel_product_scratch(std::int64_t m, std::int64_t, std::int64_t k) {
  return builtin_product_scratch(m, k);
}

class HalfProduct {};
const HalfProduct* find_half_product(Cache&, const HalfShape&) { return nullptr; }
std::size_t half_product_scratch_bytes(const HalfProduct&) { return 0; }
bool half_product(const HalfProduct&, const void*, const void*, float*, void*) { return false; }

SingleThreadedLibrary::SingleThreadedLibrary() = default;
SingleThreadedLibrary::~SingleThreadedLibrary() = default;

std::string panel_product_library() { return concat("built-in (", builtin_product_vectors(), ")"); }

}  // namespace greyhound::cpu
