#include <greyhound/train/weights_file.h>

#include <greyhound/core/memory.h>
#include <greyhound/core/version.h>
#include <greyhound/kernels/elementwise.h>

#include <cstddef>
#include <cstdlib>

namespace greyhound {

namespace {

// The parameter's shape without padded rows.
Shape logical_shape(const Parameter& parameter) {
  return parameter.shape.rank() == 2 ? Shape{parameter.logical_rows, parameter.shape[1]} : parameter.shape;
}

}  // namespace

std::vector<NamedTensor> name_parameters(const ParameterList& parameters, const ConstTensor& block,
                                         const std::string& prefix) {
  std::vector<NamedTensor> tensors;
  for (const Parameter& parameter : parameters.all()) {
    tensors.push_back({prefix + parameter.name, block.slice(parameter.offset, logical_shape(parameter))});
  }
  return tensors;
}

void read_parameters(const SafetensorsFile& file, const std::string& prefix, const Context& context,
                     const ParameterList& parameters, const Tensor& block) {
  const Context host = Context::cpu();
  std::vector<std::byte> rounded;
  zero(context, block);
  for (const Parameter& parameter : parameters.all()) {
    const std::string name = prefix + parameter.name;
    const ConstTensor stored = file[name];
    const Tensor target = block.slice(parameter.offset, logical_shape(parameter));
    if (stored.dtype != DType::fp32 && stored.dtype != DType::bf16 && stored.dtype != DType::fp16) {
      throw_runtime(file.path(), ": tensor ", name, ": expected dtype fp32, bf16 or fp16, found ",
                    name_of(stored.dtype));
    }
    if (stored.shape != target.shape) {
      throw_runtime(file.path(), ": tensor ", name, ": expected shape ", to_string(target.shape), ", found ",
                    to_string(stored.shape));
    }
    rounded.resize(target.bytes());
    const Tensor staged(rounded.data(), target.dtype, target.shape);
    cast(host, {stored, staged});
    copy(context, target, staged);
    context.synchronize();
  }
}

std::map<std::string, std::string> weights_metadata(std::int64_t step) {
  return {{"format", "pt"}, {"greyhound_version", GREYHOUND_VERSION}, {"step", std::to_string(step)}};
}

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
  write_safetensors(path, name_parameters(parameters, host), weights_metadata(step));
}

std::int64_t load_weights(const std::string& path, const Context& context, const ParameterList& parameters,
                          const Tensor& weights) {
  const SafetensorsFile file(path);
  read_parameters(file, "", context, parameters, weights);
  for (const std::string& name : file.names()) {
    if (!parameters.contains(name)) throw_runtime(path, ": holds a tensor ", name, ", which this model does not have");
  }
  const auto step = file.metadata().find("step");
  return step == file.metadata().end() ? 0 : std::atoll(step->second.c_str());
}

}  // namespace greyhound
