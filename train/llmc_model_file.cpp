#include <greyhound/train/llmc_model_file.h>

#include <greyhound/core/error.h>
#include <greyhound/train/file_io.h>
#include <greyhound/train/git_lfs.h>
#include <greyhound/train/mapped_file.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <limits>
#include <vector>

namespace greyhound {
namespace {

constexpr std::int32_t model_magic = 20240326, fp32_version = 3, bf16_version = 5;
constexpr std::int64_t vocab_multiple = 128;
using Header = std::array<std::int32_t, 256>;

// Other files of the family, which are easily taken for a model.
const char* name_of_magic(std::int32_t magic) {
  switch (magic) {
    case 20240327: return " (a llm.c debug state)";
    case 20240328: return " (a llm.c tokenizer)";
    case 20240520:
    case 20240801: return " (a token shard)";
    case 20240522: return " (a llm.c evaluation)";
    default: return "";
  }
}

std::int64_t padded(std::int64_t vocab) { return (vocab + vocab_multiple - 1) / vocab_multiple * vocab_multiple; }

// Elements of a tensor in the file, where the vocabulary is padded.
Shape stored_shape(const Gpt2Tensor& kind, Gpt2Sizes sizes, std::int64_t padded_vocab) {
  sizes.vocab_size = padded_vocab;
  return kind.shape(sizes);
}

// Bytes of the file with this header, or -1 when they do not fit 64 bits. In floating point first: sizes of up to 2^31
// each overflow when multiplied.
std::int64_t expected_bytes(const Gpt2Sizes& sizes, std::int64_t padded_vocab, std::size_t element) {
  const auto real = [](std::int64_t value) { return static_cast<long double>(value); };
  const long double width = real(sizes.n_embd);
  const long double elements =
      (real(padded_vocab) + real(sizes.block_size) + 2) * width + real(sizes.n_layer) * (12 * width + 13) * width;
  const long double bytes = elements * static_cast<long double>(element);
  if (bytes > 0x1p62L) return -1;
  // Exact: a long double has 64 bits of mantissa, and the compiler is not asked for fast-math.
  return static_cast<std::int64_t>(sizeof(Header)) + static_cast<std::int64_t>(bytes);
}

}  // namespace

ModelFile read_llmc_model(const std::string& path) {
  const auto file = std::make_shared<const MappedFile>(path);
  const auto fail = [&](const auto&... parts) { throw_runtime(path, ": bad llm.c model: ", parts...); };
  Header header;
  if (is_git_lfs_pointer(file->text())) fail("expected a header, found ", git_lfs_advice);
  if (file->size() < sizeof header) fail("expected a header of ", sizeof header, " bytes, found ", file->size());
  std::memcpy(header.data(), file->data(), sizeof header);
  if (header[0] != model_magic) {
    fail("expected the number ", model_magic, " at its start, found ", header[0], name_of_magic(header[0]));
  }
  const std::int32_t version = header[1];
  if (version != fp32_version && version != bf16_version) {
    fail("expected version ", fp32_version, " (fp32) or ", bf16_version, " (bf16), found ", version);
  }
  constexpr const char* names[] = {"positions", "vocabulary", "layers", "heads", "channels", "padded vocabulary"};
  for (int i = 0; i < 6; ++i) {
    if (header[2 + i] < 1) fail(names[i], ": expected at least 1, found ", header[2 + i]);
  }
  ModelFile model;
  model.path = path;
  model.format = concat("llm.c model (version ", version, ")");
  model.file = file;
  model.sizes = {header[4], header[5], header[6], header[2], header[3], true, true};
  const std::int64_t padded_vocab = header[7];
  if (padded_vocab < model.sizes.vocab_size) {
    fail("expected a padded vocabulary of at least ", model.sizes.vocab_size, ", found ", padded_vocab);
  }
  if (model.sizes.n_embd % model.sizes.n_head != 0) {
    fail("expected channels that are a multiple of the ", model.sizes.n_head, " heads, found ", model.sizes.n_embd);
  }
  const DType dtype = version == fp32_version ? DType::fp32 : DType::bf16;
  const std::int64_t bytes = expected_bytes(model.sizes, padded_vocab, size_of(dtype));
  if (bytes != static_cast<std::int64_t>(file->size())) {
    fail("expected ", bytes < 0 ? "more than 2^62" : std::to_string(bytes), " bytes for ", to_string(model.sizes),
         " (stored as ", padded_vocab, "), found ", file->size());
  }

  const std::byte* next = file->data() + sizeof header;
  for_each_gpt2_tensor(model.sizes, [&](const Gpt2Tensor& kind, const std::string& name) {
    const ConstTensor values =
        tensor(static_cast<const void*>(next), dtype, stored_shape(kind, model.sizes, padded_vocab));
    add_tensor(model, kind, name, {values, false});
    next += values.bytes();
  });
  return model;
}

void write_llmc_model(const std::string& path, const ModelFile& model, DType dtype) {
  const Gpt2Sizes& sizes = model.sizes;
  const std::int64_t padded_vocab = padded(sizes.vocab_size);
  Header header{};
  header[0] = model_magic;
  header[1] = dtype == DType::fp32 ? fp32_version : bf16_version;
  const std::int64_t fields[] = {sizes.block_size, sizes.vocab_size, sizes.n_layer,
                                 sizes.n_head,     sizes.n_embd,     padded_vocab};
  for (int i = 0; i < 6; ++i) {
    require(fields[i] <= std::numeric_limits<std::int32_t>::max(), path, ": ", fields[i],
            " does not fit llm.c's header");
    header[2 + i] = static_cast<std::int32_t>(fields[i]);
  }
  // Folders on the way are made, as for Hugging Face's format.
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) throw_runtime(folder.string(), ": the folder cannot be made: ", error.message());
  write_atomically(path, [&](const ByteSink& sink) {
    sink(header.data(), sizeof header);
    std::vector<std::byte> buffer;
    for_each_gpt2_tensor(sizes, [&](const Gpt2Tensor& kind, const std::string& name) {
      const Tensor stored(nullptr, dtype, stored_shape(kind, sizes, padded_vocab));
      buffer.assign(stored.bytes(), std::byte{0});
      read_tensor(model.tensors.at(name), Tensor(buffer.data(), dtype, kind.shape(sizes)));
      sink(buffer.data(), buffer.size());
    });
  });
}

}  // namespace greyhound
