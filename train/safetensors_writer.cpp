#include <greyhound/core/error.h>
#include <greyhound/train/content_hash.h>
#include <greyhound/train/file_io.h>
#include <greyhound/train/safetensors.h>
#include <greyhound/train/safetensors_format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace greyhound {

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata, ContentHash* hash) {
  // Wide elements first keeps every tensor aligned to its element, which readers that map the file rely on.
  std::vector<const NamedTensor*> ordered;
  for (const NamedTensor& named : tensors) ordered.push_back(&named);
  std::stable_sort(ordered.begin(), ordered.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return size_of(a->tensor.dtype) > size_of(b->tensor.dtype);
  });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::size_t offset = 0;
  for (const NamedTensor* named : ordered) {
    const ConstTensor& tensor = named->tensor;
    require(tensor.device.is_cpu() && tensor.contiguous(), "safetensors: ", named->name,
            " must be contiguous in host memory");
    require(named->name != "__metadata__" && !header.contains(named->name), "safetensors: the name ", named->name,
            " is taken");
    std::vector<std::int64_t> shape;
    for (int axis = 0; axis < tensor.shape.rank(); ++axis) shape.push_back(tensor.shape[axis]);
    header[named->name] = {{"dtype", safetensors::format_of(tensor.dtype).name},
                           {"shape", shape},
                           {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');  // the data starts at a multiple of 8 bytes
  const std::uint64_t length = text.size();

  write_atomically(path, [&](const ByteSink& sink) {
    const auto put = [&](const void* data, std::size_t bytes) {
      sink(data, bytes);
      if (hash != nullptr) hash->add({static_cast<const char*>(data), bytes});
    };
    put(&length, sizeof length);
    put(text.data(), text.size());
    for (const NamedTensor* named : ordered) put(named->tensor.data, named->tensor.bytes());
  });
}

}  // namespace greyhound
