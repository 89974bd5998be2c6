#include <greyhound/core/context.h>

#include <greyhound/core/error.h>

#include <doctest/doctest.h>

#include <string>

using namespace greyhound;

TEST_CASE("context: device and threads") {
  const Context context = Context::cpu(3);
  CHECK(context.device() == Device::cpu());
  CHECK(context.threads() == 3);
  CHECK(context.stream() == nullptr);
  CHECK_NOTHROW(context.synchronize());
  CHECK(Context::cpu().threads() >= 1);
  CHECK_THROWS_AS(Context::cpu(-1), Error);
  int stream = 0;
  CHECK_THROWS_AS(context.with_stream(&stream), Error);
  CHECK_NOTHROW(context.with_stream(nullptr));
}

TEST_CASE("context: copies share one cache, contexts made apart do not") {
  struct Cache {
    int made = 7;
  };
  const Context context = Context::cpu(1);
  const Context copy = context, other = Context::cpu(1);
  CHECK(copy.cache<Cache>().made == 7);
  copy.cache<Cache>().made = 8;
  CHECK(context.cache<Cache>().made == 8);
  CHECK(context.with_stream(nullptr).cache<Cache>().made == 8);
  CHECK(other.cache<Cache>().made == 7);
}

TEST_CASE("devices: names and equality") {
  CHECK(to_string(Device::cpu()) == "cpu");
  CHECK(to_string(Device::cuda(1)) == "cuda:1");
  CHECK(Device::cuda(0) != Device::cuda(1));
  CHECK(Device::cpu() != Device::cuda(0));
}

TEST_CASE("context: without a GPU asking for one is a runtime error that gives the reason") {
  if (cuda_device_count() > 0) {
    CHECK_NOTHROW(Context::cuda(0));
    CHECK_THROWS_AS(Context::cuda(cuda_device_count()), Error);
    return;
  }
  CHECK_FALSE(cuda_unavailable_reason().empty());
  try {
    Context::cuda(0);
    FAIL("did not throw");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::runtime);
    CHECK(std::string(error.what()) == "context: no CUDA device: " + cuda_unavailable_reason());
  }
}
