#include <greyhound/core/arena.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>

namespace greyhound {

std::string format_bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : bytes < 10 ? "%.2f %s" : "%.1f %s", bytes, units[unit]);
  return text;
}

ArenaPlan::Slot ArenaPlan::add(const std::string& region, const std::string& name, DType dtype, const Shape& shape) {
  const std::size_t data = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
  const std::size_t bytes = (data + memory_alignment - 1) / memory_alignment * memory_alignment;
  require(bytes <= std::numeric_limits<std::size_t>::max() / 2 - bytes_, "arena: the plan exceeds 2^63 bytes at ",
          name);
  entries_.push_back({region, name, dtype, shape, bytes_, bytes});
  bytes_ += bytes;
  return entries_.size() - 1;
}

std::vector<ArenaPlan::Region> ArenaPlan::regions() const {
  std::vector<Region> regions;
  for (const Entry& entry : entries_) {
    auto found = std::find_if(regions.begin(), regions.end(), [&](const Region& r) { return r.name == entry.region; });
    if (found == regions.end()) found = regions.insert(regions.end(), {entry.region, 0});
    found->bytes += entry.bytes;
  }
  return regions;
}

std::string ArenaPlan::table(std::int64_t free_bytes) const {
  std::string text;
  char line[160];
  const double total = static_cast<double>(bytes_);
  for (const Region& region : regions()) {
    const double bytes = static_cast<double>(region.bytes);
    std::snprintf(line, sizeof line, "  %-18s %12s %5.1f %%\n", region.name.c_str(), format_bytes(bytes).c_str(),
                  total > 0 ? 100 * bytes / total : 0.0);
    text += line;
  }
  std::snprintf(line, sizeof line, "  %-18s %12s\n", "total", format_bytes(total).c_str());
  text += line;
  if (free_bytes >= 0) {
    std::snprintf(line, sizeof line, "  %-18s %12s\n", "free", format_bytes(static_cast<double>(free_bytes)).c_str());
    text += line;
  }
  return text;
}

Arena::Arena(const Context& context, ArenaPlan plan) : plan_(std::move(plan)), device_(context.device()) {
  // Asked beforehand: an operating system that overcommits would grant the memory and kill us later.
  const std::int64_t free = available_memory(device_);
  if (plan_.bytes() > static_cast<std::size_t>(free)) {
    throw_runtime("out of memory on ", to_string(device_), ": ", format_bytes(static_cast<double>(plan_.bytes())),
                  " asked for, ", format_bytes(static_cast<double>(free)), " free\n", plan_.table(free));
  }
  data_ = allocate(device_, plan_.bytes());
  try {
    fill_bytes(context, data_, 0, plan_.bytes());
  } catch (...) {
    deallocate(device_, data_);  // the destructor does not run for an object whose constructor throws
    throw;
  }
}

Arena::~Arena() { deallocate(device_, data_); }

Arena::Arena(Arena&& other) noexcept
    : plan_(std::move(other.plan_)), data_(std::exchange(other.data_, nullptr)), device_(other.device_) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(plan_, other.plan_);
  std::swap(data_, other.data_);
  std::swap(device_, other.device_);
  return *this;
}

Tensor Arena::operator[](ArenaPlan::Slot slot) const {
  require(slot < plan_.entries().size(), "arena: slot ", slot, " of ", plan_.entries().size());
  const ArenaPlan::Entry& entry = plan_.entries()[slot];
  return Tensor(static_cast<char*>(data_) + entry.offset, entry.dtype, entry.shape, device_);
}

}  // namespace greyhound
