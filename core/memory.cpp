#include <greyhound/core/memory.h>

#include <greyhound/core/arena.h>
#include <greyhound/core/cuda_runtime.h>

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

namespace greyhound {

namespace {

// The number that follows the word `name` in a file, or -1.
std::int64_t field_in(const char* path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    std::int64_t value;
    if (word == name) return file >> value ? value : -1;
  }
  return -1;
}

// The value of a line "Name:   123 kB" in bytes, or -1.
std::int64_t proc_field(const char* path, const std::string& name) {
  const std::int64_t kilobytes = field_in(path, name + ":");
  return kilobytes < 0 ? -1 : kilobytes * 1024;
}

// A control-group file that holds one number ("max" is no limit), or -1.
std::int64_t number_in(const std::string& path) {
  std::ifstream file(path);
  std::int64_t value;
  return file >> value ? value : -1;
}

std::int64_t available_host_memory() {
  std::int64_t available = proc_field("/proc/meminfo", "MemAvailable");
  if (available < 0) available = std::int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE);

  // Address space, and private writable memory, which the kernel counts as data.
  for (const auto& [resource, field] : {std::pair{RLIMIT_AS, "VmSize"}, std::pair{RLIMIT_DATA, "VmData"}}) {
    rlimit limit{};
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur > rlim_t{std::numeric_limits<std::int64_t>::max()}) continue;
    const std::int64_t used = std::max<std::int64_t>(0, proc_field("/proc/self/status", field));
    available = std::min(available, static_cast<std::int64_t>(limit.rlim_cur) - used);
  }
  // Control groups, version 2 and version 1, as a container sees its own. Their usage includes cached files; the
  // inactive part of those is given back on demand.
  struct ControlGroup {
    const char *limit, *usage, *statistics, *cached;
  };
  for (const ControlGroup& group :
       {ControlGroup{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat",
                     "inactive_file"},
        ControlGroup{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
                     "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file"}}) {
    const std::int64_t limit = number_in(group.limit), usage = number_in(group.usage);
    const std::int64_t cached = std::max<std::int64_t>(0, field_in(group.statistics, group.cached));
    if (limit >= 0 && usage >= 0) available = std::min(available, limit - std::max<std::int64_t>(0, usage - cached));
  }
  return std::max<std::int64_t>(0, available);
}

// Pages of 2 MiB for large blocks, where the kernel gives them to those who ask: products and the optimizer walk
// through more memory than the processor has translations of small pages for. Only whole ones, so that no more memory
// is used.
constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr std::size_t least_huge = 4 * huge_page;

void ask_for_huge_pages([[maybe_unused]] void* pointer, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  madvise(pointer, bytes / huge_page * huge_page, MADV_HUGEPAGE);  // refused, the pages are small ones
#endif
}

}  // namespace

int cuda_device_count() { return cuda::device_count(); }
std::string cuda_unavailable_reason() { return cuda::unavailable_reason(); }

void* allocate(Device device, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (device.is_cuda()) return cuda::allocate(device.index, bytes);
  const std::size_t rounded = (bytes + memory_alignment - 1) / memory_alignment * memory_alignment;
  const bool huge = rounded >= least_huge;
  void* pointer = nullptr;
  const bool fits = rounded >= bytes;
  if (fits && posix_memalign(&pointer, huge ? huge_page : memory_alignment, rounded) != 0) pointer = nullptr;
  if (pointer != nullptr && huge) ask_for_huge_pages(pointer, rounded);
  if (pointer == nullptr) {
    throw_runtime("out of memory: ", format_bytes(static_cast<double>(bytes)), " asked for, ",
                  format_bytes(static_cast<double>(available_host_memory())), " free");
  }
  return pointer;
}

void deallocate(Device device, void* pointer) noexcept {
  if (pointer == nullptr) return;
  if (device.is_cuda()) {
    cuda::deallocate(device.index, pointer);
  } else {
    std::free(pointer);
  }
}

std::int64_t available_memory(Device device) {
  return device.is_cuda() ? cuda::free_memory(device.index) : available_host_memory();
}

void copy_bytes(const Context& context, void* to, Device to_device, const void* from, Device from_device,
                std::size_t bytes) {
  if (bytes == 0) return;
  if (to_device.is_cpu() && from_device.is_cpu()) {
    std::memcpy(to, from, bytes);
    return;
  }
  require(context.device().is_cuda(), "copy: between ", to_string(from_device), " and ", to_string(to_device),
          " needs a CUDA context");
  cuda::copy(context.device().index, context.stream(), to, from, bytes);
}

void fill_bytes(const Context& context, void* to, int value, std::size_t bytes) {
  if (bytes == 0) return;
  if (context.device().is_cuda()) {
    cuda::fill(context.device().index, context.stream(), to, value, bytes);
  } else {
    std::memset(to, value, bytes);
  }
}

void copy(const Context& context, const Tensor& to, const ConstTensor& from) {
  require(to.dtype == from.dtype && to.elements() == from.elements() && to.contiguous() && from.contiguous(),
          "copy: from ", name_of(from.dtype), " ", to_string(from.shape), " to ", name_of(to.dtype), " ",
          to_string(to.shape), ": expected contiguous tensors of one dtype and size");
  copy_bytes(context, to.data, to.device, from.data, from.device, to.bytes());
}

void zero(const Context& context, const Tensor& to) {
  if (to.device != context.device()) {
    throw_usage("zero: the tensor is on ", to_string(to.device), ", the context runs on ", to_string(context.device()));
  }
  require(to.contiguous(), "zero: expected a contiguous tensor, got ", to_string(to.shape), " with row stride ",
          to.row_stride);
  fill_bytes(context, to.data, 0, to.bytes());
}

}  // namespace greyhound
