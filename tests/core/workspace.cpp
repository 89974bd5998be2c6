#include <greyhound/core/workspace.h>

#include <doctest/doctest.h>

using namespace greyhound;

TEST_CASE("workspace: exact, aligned, released in stack order") {
  const std::size_t first = Workspace::size(DType::fp32, {3, 5}), second = Workspace::size(DType::bf16, {1000});
  CHECK(first == 256);
  CHECK(second == 2048);
  CHECK(Workspace::size(DType::fp64, {0}) == 0);
  CHECK(Workspace::size(DType::uint8, {256}) == 256);
  CHECK(Workspace::size(DType::uint8, {257}) == 512);

  void* memory = allocate(Device::cpu(), first + second);
  Workspace workspace(memory, first + second, Device::cpu());
  {
    const Workspace::Scope scope(workspace);
    const Tensor a = workspace.take(DType::fp32, {3, 5});
    CHECK(a.data == memory);
    CHECK(a.shape == Shape{3, 5});
    void* inner = nullptr;
    for (int i = 0; i < 2; ++i) {
      const Workspace::Scope inner_scope(workspace);
      const Tensor b = workspace.take(DType::bf16, {1000});
      CHECK(reinterpret_cast<std::uintptr_t>(b.data) % memory_alignment == 0);
      if (i == 1) CHECK(b.data == inner);  // released and taken again
      inner = b.data;
      CHECK(workspace.used() == workspace.bytes());
      CHECK(workspace.take(DType::fp32, {0}).elements() == 0);
    }
    CHECK(workspace.used() == first);
    CHECK_THROWS_WITH_AS(
        workspace.take(DType::bf16, {1025}),
        "workspace: 2304 bytes asked for, 2048 of 2304 left; use a workspace of the size that the plan names", Error);
    CHECK(workspace.used() == first);
  }
  CHECK(workspace.used() == 0);
  deallocate(Device::cpu(), memory);
}

TEST_CASE("workspace: mistakes are refused") {
  alignas(memory_alignment) static unsigned char memory[1024];
  CHECK_THROWS_AS(Workspace(memory + 1, 512, Device::cpu()), Error);
  CHECK_THROWS_AS(Workspace(nullptr, 512, Device::cpu()), Error);
  CHECK_THROWS_AS(Workspace(Tensor(memory, DType::uint8, {2, 256}, 512, Device::cpu())), Error);
  CHECK(Workspace(Tensor(memory, DType::uint8, {1024})).bytes() == 1024);
  Workspace none;
  CHECK_THROWS_AS(none.take(DType::uint8, {1}), Error);
  CHECK_NOTHROW(none.take(DType::uint8, {0}));
}
