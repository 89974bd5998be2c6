#include <greyhound/kernels/matmul_choice.h>

#include <greyhound/core/cuda/device_scope.h>
#include <greyhound/kernels/cuda/cache.h>
#include <greyhound/kernels/cuda/cublaslt.h>

#include <algorithm>

namespace greyhound::cuda {

namespace {

std::string device_name(const Context& context) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, context.device().index), "cudaGetDeviceProperties");
  return properties.name;
}

std::int64_t library_version() { return static_cast<std::int64_t>(cublasLtGetVersion()); }

}  // namespace

std::vector<MatmulChoice> matmul_choices(const Context& context) {
  const DeviceScope scope(context);
  MatmulChoice choice;
  choice.device = device_name(context);
  choice.library = library_version();
  std::vector<MatmulChoice> all;
  for (const auto& [key, algorithm] : products_of(context).choices()) {
    choice.key = key;
    std::copy(std::begin(algorithm.data), std::end(algorithm.data), choice.algorithm.begin());
    all.push_back(choice);
  }
  return all;
}

std::int64_t add_matmul_choices(const Context& context, const std::vector<MatmulChoice>& choices) {
  const DeviceScope scope(context);
  const std::string name = device_name(context);
  std::int64_t applied = 0;
  for (const MatmulChoice& choice : choices) {
    if (choice.device != name || choice.library != library_version()) continue;
    cublasLtMatmulAlgo_t algorithm{};
    std::copy(choice.algorithm.begin(), choice.algorithm.end(), std::begin(algorithm.data));
    products_of(context).choose(choice.key, algorithm);
    ++applied;
  }
  return applied;
}

}  // namespace greyhound::cuda
