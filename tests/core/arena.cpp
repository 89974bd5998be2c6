#include <greyhound/core/arena.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>

using namespace greyhound;

namespace {

std::string message_of(const ArenaPlan& plan) {
  try {
    Arena arena(Context::cpu(1), plan);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::runtime);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("arena: aligned offsets, zeros, one block") {
  ArenaPlan plan;
  const ArenaPlan::Slot a = plan.add("parameters", "a", DType::fp32, {3, 5});
  const ArenaPlan::Slot none = plan.add("parameters", "none", DType::fp32, {0});
  const ArenaPlan::Slot b = plan.add("activations", "b", DType::bf16, {2, 3, 100});
  const ArenaPlan::Slot c = plan.add("parameters", "c", DType::int64, {1});
  CHECK(plan.bytes() == 256 + 0 + 1280 + 256);
  for (const ArenaPlan::Entry& entry : plan.entries()) CHECK(entry.offset % memory_alignment == 0);

  Arena arena(Context::cpu(2), plan);
  CHECK(reinterpret_cast<std::uintptr_t>(arena[a].data) % memory_alignment == 0);
  CHECK(static_cast<char*>(arena[b].data) - static_cast<char*>(arena[a].data) == 256);
  CHECK(static_cast<char*>(arena[c].data) - static_cast<char*>(arena[b].data) == 1280);
  CHECK(arena[none].elements() == 0);
  CHECK(arena[b].shape == Shape{2, 3, 100});
  CHECK(arena[b].dtype == DType::bf16);
  const char* block = static_cast<const char*>(arena[a].data);
  CHECK(std::all_of(block, block + plan.bytes(), [](char byte) { return byte == 0; }));
  CHECK_THROWS_WITH_AS(arena[4], "arena: slot 4 of 4", Error);

  arena[a].as<float>()[14] = 7;
  Arena moved = std::move(arena);
  CHECK(moved[a].as<float>()[14] == 7);
  Arena other;
  other = std::move(moved);
  CHECK(other[a].as<float>()[14] == 7);
  CHECK(other.plan().entries().size() == 4);
}

TEST_CASE("arena plan: regions in order of first use, the table") {
  ArenaPlan plan;
  plan.add("parameters", "a", DType::fp32, {1024, 1024});
  plan.add("activations", "b", DType::fp32, {3 * 1024, 1024});
  plan.add("parameters", "c", DType::uint8, {100});
  const std::vector<ArenaPlan::Region> regions = plan.regions();
  REQUIRE(regions.size() == 2);
  CHECK(regions[0].name == "parameters");
  CHECK(regions[0].bytes == 4 * 1024 * 1024 + 256);
  CHECK(regions[1].name == "activations");
  CHECK(plan.table() ==
        "  parameters             4.00 MiB  25.0 %\n"
        "  activations            12.0 MiB  75.0 %\n"
        "  total                  16.0 MiB\n");
  CHECK(plan.table(512).find("  free                      512 B\n") != std::string::npos);
  CHECK(ArenaPlan().table() == "  total                       0 B\n");
}

TEST_CASE("arena: a plan that does not fit is refused before anything is allocated") {
  ArenaPlan plan;
  plan.add("parameters", "weight", DType::fp32, {1024});
  plan.add("activations", "logits", DType::uint8, {std::int64_t{1} << 50});  // 1 PiB
  const std::string message = message_of(plan);
  CAPTURE(message);
  CHECK(message.find("out of memory on cpu: 1024.0 TiB asked for") == 0);
  CHECK(message.find(" free\n") != std::string::npos);
  CHECK(message.find("parameters") != std::string::npos);
  CHECK(message.find("activations") != std::string::npos);

  // Sizes at the end of 64 bits neither wrap around nor pass for small.
  ArenaPlan huge;
  huge.add("activations", "a", DType::fp64, {Shape::max_elements});
  CHECK(message_of(huge).find("out of memory") == 0);
  CHECK_THROWS_AS(huge.add("activations", "b", DType::fp64, {Shape::max_elements}), Error);
  CHECK(huge.entries().size() == 1);
}

TEST_CASE("format_bytes") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1536) == "1.50 KiB");
  CHECK(format_bytes(12.0 * 1024 * 1024) == "12.0 MiB");
  CHECK(format_bytes(1.5 * 1024 * 1024 * 1024) == "1.50 GiB");
  CHECK(format_bytes(5e15) == "4547.5 TiB");
}
