#include <greyhound/train/gpt2_import.h>

#include <greyhound/core/error.h>
#include <greyhound/core/memory.h>
#include <greyhound/train/hf_model_folder.h>
#include <greyhound/train/llmc_model_file.h>
#include <greyhound/train/one_line.h>
#include <greyhound/train/run_dir.h>
#include <greyhound/train/safetensors.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <vector>

namespace greyhound {

namespace fs = std::filesystem;

namespace {

template <class From, class To>
void copy_rows(const From* from, To* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = from_float<To>(to_float(from[i]));
}

// to [rows, columns] = from [columns, stride]^T, its first `rows` columns; in blocks that fit a cache.
template <class From, class To>
void transpose(const From* from, std::int64_t stride, To* to, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t block = 32;
  for (std::int64_t row0 = 0; row0 < rows; row0 += block) {
    for (std::int64_t column0 = 0; column0 < columns; column0 += block) {
      for (std::int64_t row = row0; row < std::min(rows, row0 + block); ++row) {
        for (std::int64_t column = column0; column < std::min(columns, column0 + block); ++column) {
          to[row * columns + column] = from_float<To>(to_float(from[column * stride + row]));
        }
      }
    }
  }
}

// Weights that diverged would make every loss NaN, of which training could only say that its gradient is.
void require_finite(const Tensor& values, const std::string& path, const std::string& name) {
  dispatch(values.dtype, "load_weights", [&](auto tag) {
    using Type = typename decltype(tag)::type;
    const Type* numbers = values.as<Type>();
    for (std::int64_t i = 0; i < values.elements(); ++i) {
      if (!std::isfinite(to_float(numbers[i]))) {
        throw_runtime(path, ": ", name, ": expected finite weights, found ", to_float(numbers[i]), " at element ", i);
      }
    }
  });
}

// For a path of one file of a folder that is a model.
void require_no_part(const fs::path& path) {
  const std::string name = path.filename().string();
  const bool part = path.extension() == ".safetensors" || path.extension() == ".json" || name == "config.yaml" ||
                    name == "pytorch_model.bin";
  const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
  require(!part, path.string(), ": is one file of a model: give the folder, ", folder);
}

std::string what_is_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored) ? "holds neither a config.yaml (a Greyhound run) nor a config.json (Hugging Face)"
                                   : "does not exist";
}

}  // namespace

bool is_run_folder(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path + "/config.yaml", ignored);
}

void add_tensor(ModelFile& model, const Gpt2Tensor& kind, const std::string& name, const StoredTensor& stored) {
  const ConstTensor& values = stored.values;
  if (values.dtype != DType::fp32 && values.dtype != DType::bf16 && values.dtype != DType::fp16) {
    throw_runtime(model.path, ": ", name, ": expected dtype fp32, bf16 or fp16, found ", name_of(values.dtype));
  }
  const Shape logical = kind.shape(model.sizes);
  const Shape wanted = stored.transposed ? Shape{logical[1], logical[0]} : logical;
  const bool padded = kind.rows == Gpt2Tensor::Rows::vocab && values.shape.rank() == 2 &&
                      values.shape[0] >= wanted[0] && values.shape[1] == wanted[1];
  if (values.shape != wanted && !padded) {
    throw_runtime(model.path, ": ", name, ": expected shape ", to_string(wanted), stored.transposed ? " (in, out)" : "",
                  ", found ", to_string(values.shape));
  }
  model.tensors.emplace(name, stored);
}

void read_tensor(const StoredTensor& stored, const Tensor& to) {
  const ConstTensor& from = stored.values;
  dispatch(from.dtype, "read_tensor: stored", [&](auto from_tag) {
    using From = typename decltype(from_tag)::type;
    dispatch(to.dtype, "read_tensor: to", [&](auto to_tag) {
      using To = typename decltype(to_tag)::type;
      if (stored.transposed) {
        transpose(from.as<From>(), from.row_stride, to.as<To>(), to.rows(), to.columns());
      } else {
        copy_rows(from.as<From>(), to.as<To>(), to.elements());
      }
    });
  });
}

ModelFile read_run_model(const std::string& run_dir) {
  const RunDir dir(run_dir);
  dir.require_run();
  const Config config = load_config(dir.config());
  const auto file = std::make_shared<const SafetensorsFile>(dir.weights());
  ModelFile model;
  model.path = dir.weights();
  model.format = "Greyhound run";
  model.file = file;
  model.sizes = {config.model.n_layer,    config.model.n_head, config.model.n_embd,        config.model.block_size,
                 config.model.vocab_size, config.model.bias,   config.model.tie_embeddings};
  for_each_gpt2_tensor(model.sizes, [&](const Gpt2Tensor& kind, const std::string& name) {
    add_tensor(model, kind, name, {(*file)[name], false});
  });
  for (const std::string& name : file->names()) {
    if (model.tensors.count(name) == 0) {
      throw_runtime(model.path, ": holds a tensor ", one_line(name), ", which this model does not have");
    }
  }
  return model;
}

ModelFile open_model(const std::string& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) {
    require_no_part(path);
    return read_llmc_model(path);
  }
  const bool run = is_run_folder(path), hugging_face = fs::exists(path + "/config.json", ignored);
  require(run || hugging_face, path, ": ", what_is_there(path),
          "; expected the folder of a Greyhound run, a Hugging Face folder of a GPT-2, or a llm.c model (.bin)");
  require(!run || !hugging_face, path, ": holds a config.yaml (a Greyhound run) and a config.json (Hugging Face)");
  return run ? read_run_model(path) : read_hf_model(path);
}

void load_weights(const ModelFile& model, const Context& context, const ParameterList& parameters,
                  const Tensor& weights) {
  std::vector<std::byte> buffer;
  zero(context, weights);
  context.synchronize();
  for (const Parameter& parameter : parameters.all()) {
    const auto found = model.tensors.find(parameter.name);
    if (found == model.tensors.end()) throw_runtime(model.path, ": has no tensor ", parameter.name);
    const Shape shape =
        parameter.shape.rank() == 2 ? Shape{parameter.logical_rows, parameter.shape[1]} : parameter.shape;
    const StoredTensor& stored = found->second;
    const std::int64_t rows = stored.transposed ? stored.values.shape[1] : stored.values.shape[0];
    const std::int64_t columns = shape.rank() == 1 ? 1 : stored.values.shape[stored.transposed ? 0 : 1];
    if (rows < shape[0] || columns != (shape.rank() == 1 ? 1 : shape[1])) {
      throw_runtime(model.path, ": ", parameter.name, ": expected shape ", to_string(shape), ", found ",
                    to_string(stored.values.shape));
    }
    const Tensor target = weights.slice(parameter.offset, shape);
    if (weights.device.is_cpu()) {
      read_tensor(stored, target);
      require_finite(target, model.path, parameter.name);
      continue;
    }
    buffer.resize(target.bytes());
    const Tensor staged(buffer.data(), target.dtype, shape);
    read_tensor(stored, staged);
    require_finite(staged, model.path, parameter.name);
    copy(context, target, staged);
    context.synchronize();
  }
}

}  // namespace greyhound
