#include <greyhound/core/memory.h>

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

using namespace greyhound;

namespace {

constexpr std::int64_t mebibyte = 1024 * 1024;

// available_memory in a child process with `limit` bytes of `resource` beyond what `field` of its status says it has;
// in MiB, as an exit code can carry it.
int available_under_limit(int resource, std::int64_t limit) {
  const pid_t child = fork();
  if (child == 0) {
    rlimit limits{};
    limits.rlim_cur = limits.rlim_max = static_cast<rlim_t>(limit);
    if (setrlimit(static_cast<__rlimit_resource>(resource), &limits) != 0) _exit(255);
    const std::int64_t available = available_memory(Device::cpu()) / mebibyte;
    _exit(static_cast<int>(available < 254 ? available : 254));
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("allocate: aligned; nothing for 0 bytes") {
  for (std::size_t bytes : {1, 255, 256, 257, 100000}) {
    void* memory = allocate(Device::cpu(), bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(memory) % memory_alignment == 0);
    fill_bytes(Context::cpu(1), memory, 1, bytes);
    deallocate(Device::cpu(), memory);
  }
  CHECK(allocate(Device::cpu(), 0) == nullptr);
  CHECK_NOTHROW(deallocate(Device::cpu(), nullptr));
}

TEST_CASE("allocate: more than there is names the bytes") {
  try {
    allocate(Device::cpu(), ~std::size_t{0});
    FAIL("did not throw");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::runtime);
    CHECK(std::string(error.what()).find("out of memory: 16777216.0 TiB asked for, ") == 0);
  }
}

TEST_CASE("available_memory: plausible") {
  const std::int64_t available = available_memory(Device::cpu());
  const std::int64_t installed = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  CHECK(available > 0);
  CHECK(available <= installed);
}

TEST_CASE("available_memory: respects the limits of the process") {
#if defined(__SANITIZE_ADDRESS__)
  MESSAGE("skipped: AddressSanitizer reserves terabytes of address space");
  return;
#endif
  CHECK(available_under_limit(RLIMIT_AS, 4096) == 0);  // less than the process has already
  const std::int64_t some = 2000 * mebibyte;
  const int left = available_under_limit(RLIMIT_AS, some);
  CHECK(left > 0);
  CHECK(available_under_limit(RLIMIT_DATA, 4096) == 0);
  const int data_left = available_under_limit(RLIMIT_DATA, 250 * mebibyte);
  CHECK(data_left >= 0);
  CHECK(data_left < 250);
}

TEST_CASE("copy and zero: contiguous tensors of one dtype and size") {
  const Context context = Context::cpu(1);
  float from[6] = {1, 2, 3, 4, 5, 6}, to[6] = {};
  const Tensor source(from, DType::fp32, {2, 3}), target(to, DType::fp32, {6});
  copy(context, target, source);
  CHECK(to[5] == 6);
  zero(context, target);
  CHECK(to[5] == 0);
  CHECK_THROWS_AS(copy(context, Tensor(to, DType::fp32, {5}), source), Error);
  CHECK_THROWS_AS(copy(context, Tensor(to, DType::int32, {6}), source), Error);
  CHECK_THROWS_AS(copy(context, target, Tensor(from, DType::fp32, {2, 2}, 3, Device::cpu())), Error);
  CHECK_THROWS_AS(zero(context, Tensor(from, DType::fp32, {2, 2}, 3, Device::cpu())), Error);
  CHECK_THROWS_AS(zero(context, Tensor(to, DType::fp32, {6}, Device::cuda())), Error);
  CHECK_THROWS_AS(copy(context, Tensor(to, DType::fp32, {6}, Device::cuda()), source), Error);
}
