#include <greyhound/core/error.h>
#include <greyhound/train/git_lfs.h>
#include <greyhound/train/json_error.h>
#include <greyhound/train/mapped_file.h>
#include <greyhound/train/safetensors.h>
#include <greyhound/train/safetensors_format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <utility>

namespace greyhound {
namespace {

using nlohmann::json;

struct Entry {
  std::string name;
  const safetensors::Format* format = nullptr;
  std::vector<std::int64_t> shape;
  std::size_t begin = 0, end = 0;  // from the end of the header
};

// Checks the header of one file; every message starts with its path.
class Header {
 public:
  Header(const MappedFile& file, std::map<std::string, std::string>& metadata) : file_(file) {
    const json header = parse();
    for (const auto& [name, value] : header.items()) {
      name == "__metadata__" ? read_metadata(value, metadata) : read_entry(name, value);
    }
    check_layout();
  }

  const std::vector<Entry>& entries() const { return entries_; }
  std::size_t data_begin() const { return data_begin_; }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    std::string what = concat(parts...);  // which may quote the file: it stays one line
    std::replace_if(what.begin(), what.end(), is_control, '?');
    throw_runtime(file_.path(), ": bad safetensors file: ", what);
  }

  json parse() {
    if (is_git_lfs_pointer(file_.text())) fail("expected tensors, found ", git_lfs_advice);
    if (file_.size() < 8) fail("expected at least 8 bytes, found ", file_.size());
    std::uint64_t length;
    std::memcpy(&length, file_.data(), sizeof length);
    if (length > file_.size() - 8 || length > safetensors::most_header_bytes) {
      fail("expected a header of at most ", std::min<std::uint64_t>(file_.size() - 8, safetensors::most_header_bytes),
           " bytes, found a length of ", length);
    }
    data_begin_ = 8 + static_cast<std::size_t>(length);
    // nlohmann-json lets the last of two equal keys win, which would hide half of a damaged header.
    std::vector<std::set<std::string>> keys;
    std::string duplicate;
    const auto watch = [&](int, json::parse_event_t event, json& value) {
      if (event == json::parse_event_t::object_start) keys.emplace_back();
      if (event == json::parse_event_t::object_end) keys.pop_back();
      if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
        duplicate = value.get<std::string>();
      }
      return true;
    };
    json header;
    try {
      header = json::parse(file_.text().substr(8, length), watch);
    } catch (const json::exception& error) {
      fail("the header is not JSON: ", json_error_text(error.what()));
    }
    if (!header.is_object()) fail("the header is not a JSON object");
    if (!duplicate.empty()) fail("the header has ", duplicate, " twice");
    return header;
  }

  void read_metadata(const json& value, std::map<std::string, std::string>& metadata) const {
    if (!value.is_object()) fail("__metadata__ is not an object of text");
    for (const auto& [name, text] : value.items()) {
      if (!text.is_string()) fail("__metadata__ is not an object of text: ", name);
      metadata[name] = text.get<std::string>();
    }
  }

  // A whole number that cannot be negative.
  std::uint64_t read_size(const std::string& name, const json& value) const {
    if (!value.is_number_unsigned()) fail(name, ": expected a whole number, found ", value.dump());
    return value.get<std::uint64_t>();
  }

  static bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

  void read_entry(const std::string& name, const json& value) {
    if (std::any_of(name.begin(), name.end(), is_control)) fail("control characters in the name ", name);
    const bool complete = value.is_object() && value.contains("dtype") && value["dtype"].is_string() &&
                          value.contains("shape") && value["shape"].is_array() && value.contains("data_offsets") &&
                          value["data_offsets"].is_array() && value["data_offsets"].size() == 2;
    if (!complete) fail(name, ": expected dtype, shape and two data_offsets");
    Entry entry;
    entry.name = name;
    const std::string dtype = value["dtype"];
    entry.format = safetensors::find_format(dtype);
    if (entry.format == nullptr) fail(name, ": unknown dtype ", dtype);

    const std::uint64_t available = file_.size() - data_begin_;
    const std::uint64_t begin = read_size(name, value["data_offsets"][0]);
    const std::uint64_t end = read_size(name, value["data_offsets"][1]);
    if (begin > end || end > available) {
      fail(name, ": expected data_offsets within ", available, " bytes of data, found ", begin, " to ", end);
    }
    // Element by element of the shape, so that no product overflows: none may pass the bytes there are.
    std::uint64_t bytes = entry.format->bytes;
    bool fits = true;
    for (const json& dimension : value["shape"]) {
      const std::uint64_t size = read_size(name, dimension);
      fits = fits && size <= std::uint64_t{1} << 62 && !__builtin_mul_overflow(bytes, size, &bytes);
      entry.shape.push_back(static_cast<std::int64_t>(size));
    }
    if (!fits || bytes != end - begin) {
      fail(name, ": expected ", fits ? std::to_string(bytes) : "more", " bytes for ", dtype, " of shape ",
           value["shape"].dump(), ", found data_offsets of ", end - begin, " bytes");
    }
    entry.begin = static_cast<std::size_t>(begin);
    entry.end = static_cast<std::size_t>(end);
    entries_.push_back(std::move(entry));
  }

  // The tensors follow each other without overlaps, gaps or a rest, as the format demands.
  void check_layout() {
    std::sort(entries_.begin(), entries_.end(),
              [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
    std::size_t next = 0;
    for (const Entry& entry : entries_) {
      if (entry.begin < next)
        fail(entry.name, " overlaps the tensor before it: starts at ", entry.begin, ", not ", next);
      if (entry.begin > next) fail(entry.name, " leaves a gap before it: starts at ", entry.begin, ", not ", next);
      next = entry.end;
    }
    const std::size_t available = file_.size() - data_begin_;
    if (next != available) fail("expected ", next, " bytes of data, found ", available);
  }

  const MappedFile& file_;
  std::size_t data_begin_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace

struct SafetensorsFile::Impl {
  MappedFile file;
  std::map<std::string, std::string> metadata;
  std::vector<Entry> entries;
  std::unordered_map<std::string, std::size_t> index;  // in entries, by name
  std::size_t data_begin = 0;
  // Copies of tensors that other writers have put at odd addresses.
  mutable std::map<std::string, std::vector<std::uint64_t>> aligned;
};

SafetensorsFile::SafetensorsFile(const std::string& path) : impl_(std::make_unique<Impl>()) {
  impl_->file = MappedFile(path);
  const Header header(impl_->file, impl_->metadata);
  impl_->entries = header.entries();
  impl_->data_begin = header.data_begin();
  for (std::size_t i = 0; i < impl_->entries.size(); ++i) impl_->index.emplace(impl_->entries[i].name, i);
}

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;

const std::string& SafetensorsFile::path() const { return impl_->file.path(); }
const std::map<std::string, std::string>& SafetensorsFile::metadata() const { return impl_->metadata; }

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const Entry& entry : impl_->entries) names.push_back(entry.name);
  return names;
}

bool SafetensorsFile::contains(const std::string& name) const { return impl_->index.count(name) > 0; }

ConstTensor SafetensorsFile::operator[](const std::string& name) const {
  const auto found = impl_->index.find(name);
  if (found == impl_->index.end()) throw_runtime(path(), ": has no tensor ", name);
  const Entry* entry = &impl_->entries[found->second];
  if (!entry->format->dtype)
    throw_runtime(path(), ": ", name, " has dtype ", entry->format->name, ", which is not used here");
  const auto& sizes = entry->shape;
  const std::size_t rank = sizes.size();
  if (rank > static_cast<std::size_t>(Shape::max_rank)) throw_runtime(path(), ": ", name, " has ", rank, " dimensions");
  const Shape shape = rank == 0   ? Shape{}
                      : rank == 1 ? Shape{sizes[0]}
                      : rank == 2 ? Shape{sizes[0], sizes[1]}
                      : rank == 3 ? Shape{sizes[0], sizes[1], sizes[2]}
                                  : Shape{sizes[0], sizes[1], sizes[2], sizes[3]};
  const void* data = impl_->file.data() + impl_->data_begin + entry->begin;
  if (reinterpret_cast<std::uintptr_t>(data) % entry->format->bytes != 0) {
    std::vector<std::uint64_t>& copy = impl_->aligned[name];
    copy.resize((entry->end - entry->begin + 7) / 8);
    std::memcpy(copy.data(), data, entry->end - entry->begin);
    data = copy.data();
  }
  return tensor(data, *entry->format->dtype, shape);
}

}  // namespace greyhound
