#include <greyhound/train/checkpoint.h>

#include <greyhound/core/memory.h>
#include <greyhound/core/version.h>
#include <greyhound/kernels/elementwise.h>
#include <greyhound/train/safetensors.h>

#include <cstddef>
#include <cstdlib>
#include <vector>

namespace greyhound {

namespace {

// The parameter's shape without padded rows.
Shape logical_shape(const Parameter& parameter) {
  return parameter.shape.rank() == 2 ? Shape{parameter.logical_rows, parameter.shape[1]} : parameter.shape;
}

Tensor logical_view(const Tensor& block, const Parameter& parameter) {
  return block.slice(parameter.offset, logical_shape(parameter));
}

}  // namespace

void save_weights(const std::string& path, const Context& context, const ParameterList& parameters,
                  const Tensor& weights, std::int64_t step) {
  Tensor host = weights;
  std::vector<std::byte> copy_on_host;
  if (!weights.device.is_cpu()) {
    copy_on_host.resize(weights.bytes());
    host = Tensor(copy_on_host.data(), weights.dtype, weights.shape);
    copy(context, host, weights);
    context.synchronize();
  }
  std::vector<NamedTensor> tensors;
  for (const Parameter& parameter : parameters.all()) {
    tensors.push_back({parameter.name, logical_view(host, parameter)});
  }
  write_safetensors(path, tensors,
                    {{"format", "pt"}, {"greyhound_version", GREYHOUND_VERSION}, {"step", std::to_string(step)}});
}

std::int64_t load_weights(const std::string& path, const Context& context, const ParameterList& parameters,
                          const Tensor& weights) {
  const SafetensorsFile file(path);
  const Context host = Context::cpu();
  std::vector<std::byte> rounded;
  zero(context, weights);
  for (const Parameter& parameter : parameters.all()) {
    const ConstTensor stored = file[parameter.name];
    const Tensor target = logical_view(weights, parameter);
    if (stored.dtype != DType::fp32 && stored.dtype != DType::bf16 && stored.dtype != DType::fp16) {
      throw_runtime(path, ": tensor ", parameter.name, ": expected dtype fp32, bf16 or fp16, found ",
                    name_of(stored.dtype));
    }
    if (stored.shape != target.shape) {
      throw_runtime(path, ": tensor ", parameter.name, ": expected shape ", to_string(target.shape), ", found ",
                    to_string(stored.shape));
    }
    rounded.resize(target.bytes());
    const Tensor staged(rounded.data(), target.dtype, target.shape);
    cast(host, {stored, staged});
    copy(context, target, staged);
    context.synchronize();
  }
  for (const std::string& name : file.names()) {
    if (!parameters.contains(name)) throw_runtime(path, ": holds a tensor ", name, ", which this model does not have");
  }
  const auto step = file.metadata().find("step");
  return step == file.metadata().end() ? 0 : std::atoll(step->second.c_str());
}

}  // namespace greyhound
