#include <doctest/doctest.h>
#include <greyhound/core/error.h>
#include <greyhound/core/graph.h>
#include <greyhound/core/memory.h>
#include <greyhound/core/stream.h>
#include <tests/backend.h>

#include <cstdint>
#include <utility>

using namespace greyhound;

namespace {

constexpr std::size_t bytes = sizeof(std::uint64_t);

// Numbers in the memory of a context's device.
class Numbers {
 public:
  explicit Numbers(const Context& context) : context_(context), data_(allocate(context.device(), 2 * bytes)) {
    set(0, 0);
    set(1, 0);
  }
  ~Numbers() { deallocate(context_.device(), data_); }

  void set(int index, std::uint64_t value) {
    copy_bytes(context_, at(index), context_.device(), &value, Device::cpu(), bytes);
    context_.synchronize();
  }
  std::uint64_t get(int index) const {
    std::uint64_t value = 0;
    copy_bytes(context_, &value, Device::cpu(), at(index), context_.device(), bytes);
    context_.synchronize();
    return value;
  }
  // Enqueues number 1 = number 0.
  void copy() const { copy_bytes(context_, at(1), context_.device(), at(0), context_.device(), bytes); }

 private:
  char* at(int index) const { return static_cast<char*>(data_) + static_cast<std::size_t>(index) * bytes; }

  Context context_;
  void* data_;
};

}  // namespace

TEST_CASE_ON_EACH_BACKEND("graph: what was captured runs at each launch, on what is in memory then") {
  const Stream stream(test::test_context());
  const Context& context = stream.context();
  Numbers numbers(context);
  numbers.set(0, 1);
  Graph graph(context, [&] { numbers.copy(); });
  CHECK(static_cast<bool>(graph));
  CHECK(numbers.get(1) == 0);  // not yet
  for (std::uint64_t value : {5, 6, 7}) {
    numbers.set(0, value);
    graph.launch(context);
    CHECK(numbers.get(1) == value);
  }

  Graph moved = std::move(graph);
  CHECK_FALSE(static_cast<bool>(graph));
  CHECK_THROWS_AS(graph.launch(context), Error);
  const Stream beside(context);  // of the same device
  numbers.set(0, 8);
  moved.launch(beside.context());
  beside.context().synchronize();
  CHECK(numbers.get(1) == 8);

  graph = std::move(moved);
  moved = Graph();
  numbers.set(0, 9);
  graph.launch(context);
  CHECK(numbers.get(1) == 9);
}

TEST_CASE_ON_EACH_BACKEND("graph: nothing to capture is refused, and so is the default stream of a GPU") {
  const Context context = test::test_context();
  CHECK_FALSE(static_cast<bool>(Graph()));
  CHECK_THROWS_AS(Graph().launch(context), Error);
  CHECK_THROWS_AS(Graph(context, nullptr), Error);
  if (context.device().is_cuda()) CHECK_THROWS_AS(Graph(context, [] {}), Error);
}

TEST_CASE("graph: a capture that fails throws, and the stream goes on" * doctest::test_suite("cuda")) {
  if (!test::have_device() || test::cpu_as_device()) return;
  const Stream stream(test::device_context());
  const Context& context = stream.context();
  Numbers numbers(context);
  CHECK_THROWS_WITH(Graph(context, [] { throw_usage("the caller's own"); }), "the caller's own");
  CHECK_THROWS_AS(Graph(context, [&] { context.synchronize(); }), Error);  // a wait
  CHECK_THROWS_AS(Graph(context,
                        [&] {
                          numbers.copy();
                          context.synchronize();
                        }),
                  Error);
  numbers.set(0, 3);
  numbers.copy();
  CHECK(numbers.get(1) == 3);
  Graph graph(context, [&] { numbers.copy(); });
  numbers.set(0, 4);
  graph.launch(context);
  CHECK(numbers.get(1) == 4);
}
