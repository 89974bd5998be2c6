#include <doctest/doctest.h>
#include <greyhound/core/host_buffer.h>
#include <greyhound/core/memory.h>
#include <greyhound/core/stream.h>
#include <tests/backend.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

using namespace greyhound;

namespace {

constexpr std::size_t count = std::size_t{1} << 22;
constexpr std::size_t bytes = count * sizeof(std::uint32_t);

struct DeviceBlock {
  explicit DeviceBlock(const Context& context) : device(context.device()), data(allocate(device, bytes)) {}
  ~DeviceBlock() { deallocate(device, data); }
  Device device;
  void* data;
};

}  // namespace

TEST_CASE_ON_EACH_BACKEND("stream: copies beside the context's stream are ordered by events") {
  const Context context = test::test_context();
  const Stream beside(context);
  CHECK(beside.context().device() == context.device());
  DeviceBlock block(context), other(context);
  HostBuffer from(context, bytes), to(context, bytes);
  Event copied(context), used(context);
  auto* numbers = static_cast<std::uint32_t*>(from.data());
  for (std::uint32_t round = 1; round <= 8; ++round) {
    copied.wait();  // `from` is read no more
    std::iota(numbers, numbers + count, round);
    used.order_before(beside.context());
    copy_bytes(beside.context(), block.data, block.device, from.data(), Device::cpu(), bytes);
    copied.record(beside.context());
    copied.order_before(context);
    copy_bytes(context, other.data, other.device, block.data, block.device, bytes);
    used.record(context);
    copy_bytes(context, to.data(), Device::cpu(), other.data, other.device, bytes);
    Event done(context);
    done.record(context);
    done.wait();
    CHECK(std::memcmp(to.data(), from.data(), bytes) == 0);
  }
}

TEST_CASE_ON_EACH_BACKEND("event: measures the work between two points; one that was never recorded is reached") {
  const Context context = test::test_context();
  const DeviceBlock block(context);
  Event begin(context), end(context);
  CHECK_NOTHROW(end.wait());
  CHECK_NOTHROW(end.order_before(context));
  begin.record(context);
  for (int i = 0; i < 3; ++i) fill_bytes(context, block.data, i, bytes);
  end.record(context);
  end.wait();
  CHECK(end.seconds_since(begin) > 0);
  CHECK(end.seconds_since(begin) < 60);
  Event moved = std::move(end);
  CHECK(moved.seconds_since(begin) > 0);
  end = std::move(moved);
  CHECK(end.seconds_since(begin) > 0);
}

TEST_CASE_ON_EACH_BACKEND("host buffer: aligned zeros, and nothing for 0 bytes") {
  const Context context = test::test_context();
  HostBuffer buffer(context, 1000);
  CHECK(buffer.bytes() == 1000);
  CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % memory_alignment == 0);
  const std::vector<char> zeros(1000, 0);
  CHECK(std::memcmp(buffer.data(), zeros.data(), zeros.size()) == 0);
  void* data = buffer.data();
  HostBuffer moved = std::move(buffer);
  CHECK(moved.data() == data);
  buffer = HostBuffer(context, 0);
  CHECK(buffer.data() == nullptr);
}
