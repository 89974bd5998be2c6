#include <greyhound/core/comm/mpi_ranks.h>

#include <greyhound/core/comm/mpi/mpi_messages.h>
#include <greyhound/core/comm/work_queue.h>
#include <greyhound/core/error.h>

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

namespace greyhound {

namespace {

// The ranks' processes, for Peers. Before anything can be waited for otherwise.
std::vector<ProcessId> exchange_processes(MPI_Comm comm, int size) {
  const ProcessId own = this_process();
  std::vector<ProcessId> all(static_cast<std::size_t>(size));
  check_mpi(MPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, comm), "MPI_Allgather");
  return all;
}

// What a dtype is summed in.
template <class T>
T widened(T value) {
  return value;
}
inline float widened(bf16 value) { return to_float(value); }
template <class T, class Sum>
T rounded(Sum sum) {
  if constexpr (std::is_same_v<T, bf16>) {
    return from_float<bf16>(sum);
  } else {
    return sum;
  }
}

template <class Function>
void dispatch_reducible(DType dtype, ReduceOp op, Function&& function) {
  switch (dtype) {
    case DType::fp32: return function(TypeTag<float>{});
    case DType::fp64: return function(TypeTag<double>{});
    case DType::int32: return function(TypeTag<std::int32_t>{});
    case DType::int64: return function(TypeTag<std::int64_t>{});
    case DType::bf16:
      require(op == ReduceOp::sum, "reduction over ranks: the maximum of bf16 is not there");
      return function(TypeTag<bf16>{});
    default: throw_usage("reduction over ranks: expected fp32, fp64, int32, int64 or bf16, got ", name_of(dtype));
  }
}

// out[i] = the reduction over `ranks` rows of `count` values, in the order of the rows.
template <class T>
void reduce_rows(const T* rows, int ranks, std::int64_t count, T* out, ReduceOp op) {
  using Sum = decltype(widened(T{}));
  constexpr std::int64_t tile = 512;  // accumulators stay in the first cache
  Sum sums[tile];
  for (std::int64_t begin = 0; begin < count; begin += tile) {
    const std::int64_t n = std::min(tile, count - begin);
    for (std::int64_t i = 0; i < n; ++i) sums[i] = widened(rows[begin + i]);
    for (int rank = 1; rank < ranks; ++rank) {
      const T* row = rows + rank * count + begin;
      if (op == ReduceOp::sum) {
        for (std::int64_t i = 0; i < n; ++i) sums[i] += widened(row[i]);
      } else {
        for (std::int64_t i = 0; i < n; ++i) sums[i] = std::max<Sum>(sums[i], widened(row[i]));
      }
    }
    for (std::int64_t i = 0; i < n; ++i) out[begin + i] = rounded<T>(sums[i]);
  }
}

// Sums over ranks in the order of the ranks, whatever pieces a vector is cut into. MPI_Allreduce promises no order;
// here every rank fetches its part of each piece from all others, reduces it in order, and the parts are gathered: the
// bytes on the wire are those of a ring.
class MpiRanks final : public Communicator {
 public:
  // `asynchronous`: another thread than the caller's may call MPI while the caller does not.
  MpiRanks(MPI_Comm comm, bool asynchronous)
      : comm_(comm),
        rank_(rank_in(comm)),
        size_(size_in(comm)),
        asynchronous_(asynchronous),
        messages_(comm, Peers(exchange_processes(comm, size_), rank_)) {
    // The only scratch, made once: a part of a piece from every rank.
    staging_.resize(static_cast<std::size_t>(size_ * part_bytes));
  }

  ~MpiRanks() override {
    messages_.cancel();
    try {
      queue_.join();
    } catch (...) {
      return;  // the communicator is broken; its users have been told
    }
    int finalized = 0;
    const bool usable = MPI_Finalized(&finalized) == MPI_SUCCESS && !finalized;
    // All ranks free it together, which they do not when an exception ends one of them.
    if (usable && !failed() && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_reduce(const Context& context, const Tensor& data, ReduceOp op) override {
    const Waiting waiting(*this);
    require_host(context, data, "all_reduce");
    reduce_in_place(data, op);
  }

  void reduce_scatter(const Context& context, const ConstTensor& input, const Tensor& output) override {
    const Waiting waiting(*this);
    require_host(context, input, "reduce_scatter");
    require_host(context, output, "reduce_scatter");
    require(input.dtype == output.dtype && input.elements() == output.elements() * size_,
            "reduce_scatter: ", input.elements(), " elements in, ", output.elements(), " out, ", size_, " ranks");
    dispatch_reducible(output.dtype, ReduceOp::sum, [&](auto tag) {
      using T = typename decltype(tag)::type;
      constexpr std::int64_t part = part_bytes / static_cast<std::int64_t>(sizeof(T));
      const T* from = static_cast<const T*>(input.data);
      const std::int64_t n = output.elements();
      for (std::int64_t begin = 0; begin < n; begin += part) {
        const std::int64_t count = std::min(part, n - begin);
        exchange<T>([&](int rank) { return Span<const T>{from + rank * n + begin, count}; }, "reduce_scatter");
        reduce_rows(staged<T>(), size_, count, static_cast<T*>(output.data) + begin, ReduceOp::sum);
      }
    });
  }

  void all_gather(const Context& context, const ConstTensor& input, const Tensor& output) override {
    const Waiting waiting(*this);
    require_host(context, input, "all_gather");
    require_host(context, output, "all_gather");
    require(input.dtype == output.dtype && input.elements() * size_ == output.elements(),
            "all_gather: ", input.elements(), " elements in, ", output.elements(), " out, ", size_, " ranks");
    const auto n = static_cast<std::int64_t>(input.bytes());
    const char* from = static_cast<const char*>(input.data);
    char* to = static_cast<char*>(output.data);
    if (n > 0 && to + rank_ * n != from) std::memmove(to + rank_ * n, from, static_cast<std::size_t>(n));
    for (std::int64_t begin = 0; begin < n; begin += part_bytes) {
      const std::int64_t count = std::min(part_bytes, n - begin);
      for_others([&](int rank) { messages_.receive(to + rank * n + begin, count, rank, 0); });
      for_others([&](int rank) { messages_.send(to + rank_ * n + begin, count, rank, 0); });
      messages_.wait("all_gather");
    }
  }

  void broadcast(const Context& context, const Tensor& data, int root) override {
    const Waiting waiting(*this);
    require_host(context, data, "broadcast");
    require(root >= 0 && root < size_, "broadcast: root ", root, " of ", size_, " ranks");
    const auto n = static_cast<std::int64_t>(data.bytes());
    // Not MPI_Ibcast, which could not be cancelled and would go on writing after a failure. A binomial tree: the rank
    // at place p from the root's has it from the one without p's lowest bit, and gives it to those with a lower bit
    // more.
    const int place = (rank_ - root + size_) % size_;
    const auto rank_at = [&](int other) { return (other + root) % size_; };
    int bit = 1;
    while (bit < size_ && (place & bit) == 0) bit *= 2;
    for (std::int64_t begin = 0; begin < n; begin += part_bytes) {
      char* part = static_cast<char*>(data.data) + begin;
      const std::int64_t count = std::min(part_bytes, n - begin);
      if (place != 0) messages_.receive(part, count, rank_at(place - bit), 0);
      messages_.wait("broadcast");
      for (int lower = bit / 2; lower > 0; lower /= 2) {
        if (place + lower < size_) messages_.send(part, count, rank_at(place + lower), 0);
      }
      messages_.wait("broadcast");
    }
  }

  void barrier(const Context& context) override {
    const Waiting waiting(*this);
    context.synchronize();
    messages_.barrier();
    messages_.wait("barrier");
  }

  void start_all_reduce(const Context& context, const Tensor& data) override {
    if (!asynchronous_) return all_reduce(context, data, ReduceOp::sum);
    require_host(context, data, "all_reduce");
    dispatch_reducible(data.dtype, ReduceOp::sum, [](auto) {});  // a mistake is the caller's, here and now
    queue_.add([this, data] { reduce_in_place(data, ReduceOp::sum); });
  }

  void join(const Context&) override { const Waiting waiting(*this); }

  double take_exposed_ms() override { return std::exchange(exposed_ms_, 0.0); }
  void set_timeout(double seconds) override { messages_.set_timeout(seconds); }
  void check() override {
    if (failed()) throw_runtime(messages_.failure());
  }
  bool failed() const override { return queue_.idle() && !messages_.failure().empty(); }

 private:
  static constexpr std::int64_t part_bytes = 1 << 20;

  template <class T>
  struct Span {
    T* data;
    std::int64_t count;
  };

  // MPI is the caller's from here on, since what was started is done; counts the time until the end of the scope.
  class Waiting {
   public:
    explicit Waiting(MpiRanks& ranks) : ranks_(ranks) { ranks_.queue_.join(); }
    ~Waiting() {
      ranks_.exposed_ms_ +=
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_).count();
    }

   private:
    MpiRanks& ranks_;
    const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  };

  static int rank_in(MPI_Comm comm) {
    int rank = 0;
    check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
    return rank;
  }
  static int size_in(MPI_Comm comm) {
    int size = 1;
    check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
    return size;
  }

  static void require_host(const Context&, const ConstTensor& data, const char* what) {
    require(data.device.is_cpu() && data.contiguous(), what, ": MPI's ranks need contiguous host memory");
  }

  // The others in an order that differs from rank to rank, so that they do not all talk to the same one.
  template <class Function>
  void for_others(Function&& function) {
    for (int shift = 1; shift < size_; ++shift) function((rank_ + shift) % size_);
  }

  template <class T>
  T* staged() {
    return reinterpret_cast<T*>(staging_.data());
  }

  // Sends each rank its part; leaves this rank's parts of all ranks in staged(), as rows in the ranks' order.
  template <class T, class PartOf>
  void exchange(PartOf&& part_of, const char* what) {
    const Span<const T> own = part_of(rank_);
    constexpr auto size = static_cast<std::int64_t>(sizeof(T));
    for_others([&](int rank) { messages_.receive(staged<T>() + rank * own.count, own.count * size, rank, 0); });
    for_others([&](int rank) { messages_.send(part_of(rank).data, part_of(rank).count * size, rank, 0); });
    std::copy_n(own.data, own.count, staged<T>() + rank_ * own.count);
    messages_.wait(what);
  }

  void reduce_in_place(const Tensor& data, ReduceOp op) {
    dispatch_reducible(data.dtype, op, [&](auto tag) {
      using T = typename decltype(tag)::type;
      constexpr std::int64_t most = part_bytes / static_cast<std::int64_t>(sizeof(T));
      T* values = static_cast<T*>(data.data);
      for (std::int64_t begin = 0; begin < data.elements(); begin += most * size_) {
        reduce_piece(values + begin, std::min(most * size_, data.elements() - begin), op);
      }
    });
  }

  // A piece holds one part per rank; parts at the end may be shorter or empty.
  template <class T>
  void reduce_piece(T* values, std::int64_t count, ReduceOp op) {
    const std::int64_t part = (count + size_ - 1) / size_;
    const auto part_of = [&](int rank) {
      const std::int64_t begin = std::min(count, rank * part), end = std::min(count, begin + part);
      return Span<T>{values + begin, end - begin};
    };
    exchange<T>([&](int rank) { return Span<const T>{part_of(rank).data, part_of(rank).count}; }, "all_reduce");
    const Span<T> own = part_of(rank_);
    reduce_rows(staged<T>(), size_, own.count, own.data, op);
    constexpr auto size = static_cast<std::int64_t>(sizeof(T));
    for_others([&](int rank) { messages_.receive(part_of(rank).data, part_of(rank).count * size, rank, 1); });
    for_others([&](int rank) { messages_.send(own.data, own.count * size, rank, 1); });
    messages_.wait("all_reduce");
  }

  MPI_Comm comm_;
  const int rank_, size_;
  const bool asynchronous_;
  MpiMessages messages_;
  std::vector<char> staging_;
  double exposed_ms_ = 0;
  WorkQueue queue_;  // last: its thread ends before what it uses
};

std::unique_ptr<Communicator> make(MPI_Comm of, int needed_for_threads) {
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(of, &comm), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return std::make_unique<MpiRanks>(comm, provided >= needed_for_threads);
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_ranks(int expected) {
  int initialized = 0;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  if (!initialized) {
    int provided = 0;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    std::atexit([] {
      int finalized = 0;
      if (MPI_Finalized(&finalized) == MPI_SUCCESS && !finalized) MPI_Finalize();
    });
  }
  // Nobody else calls MPI in this process: one thread at a time is all it takes.
  std::unique_ptr<Communicator> ranks = make(MPI_COMM_WORLD, MPI_THREAD_SERIALIZED);
  if (ranks->size() != expected) {
    throw_runtime("MPI sees ", ranks->size(), " ranks where the launcher started ", expected,
                  ": mpirun and the MPI library that this program was built with are of different kinds");
  }
  return ranks;
}

std::unique_ptr<Communicator> wrap_mpi(int fortran_handle) {
  int initialized = 0;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  require(initialized, "wrap_mpi: MPI is not initialised");
  // The caller's threads may be in MPI at any time.
  return make(MPI_Comm_f2c(fortran_handle), MPI_THREAD_MULTIPLE);
}

void mpi_abort(int exit_code) noexcept {
  int initialized = 0, finalized = 0;
  if (MPI_Initialized(&initialized) == MPI_SUCCESS && initialized && MPI_Finalized(&finalized) == MPI_SUCCESS &&
      !finalized) {
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }
}

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  check_mpi(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  return std::string(text, static_cast<std::size_t>(length));
}

}  // namespace greyhound
