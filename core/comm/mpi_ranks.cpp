#include <greyhound/core/comm/mpi_ranks.h>

#include <greyhound/core/error.h>

#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace greyhound {

namespace {

void check(int status, const char* what) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw_runtime("MPI: ", what, ": ", std::string(text, static_cast<std::size_t>(length)));
}

template <class Function>
void dispatch_reducible(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::fp32: return function(TypeTag<float>{});
    case DType::fp64: return function(TypeTag<double>{});
    case DType::int32: return function(TypeTag<std::int32_t>{});
    case DType::int64: return function(TypeTag<std::int64_t>{});
    default: throw_usage("reduction over ranks: expected fp32, fp64, int32 or int64, got ", name_of(dtype));
  }
}

// Sums over ranks in the order of the ranks. MPI_Allreduce promises no order; here every rank fetches its part of each
// piece from all others, reduces it in order, and the parts are gathered: the bytes on the wire are those of a ring.
class MpiRanks final : public Communicator {
 public:
  MpiRanks() {
    check(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    // The only scratch, made once: a piece per rank.
    const std::size_t ranks = static_cast<std::size_t>(size_);
    staging_.resize(ranks * piece_bytes);
    offsets_.resize(ranks);
    bytes_.resize(ranks);
    piece_offsets_.resize(ranks);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_reduce(const Context& context, const Tensor& data, ReduceOp op) override {
    require_host(context, data, "all_reduce");
    dispatch_reducible(data.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      T* values = static_cast<T*>(data.data);
      // A piece holds one part per rank; parts of the last piece may be shorter or empty.
      const std::int64_t part = piece_bytes / static_cast<std::int64_t>(sizeof(T));
      for (std::int64_t begin = 0; begin < data.elements(); begin += part * size_) {
        const std::int64_t count = std::min(part * size_, data.elements() - begin);
        reduce_piece(values + begin, count, op);
      }
    });
  }

  void reduce_scatter(const Context& context, const ConstTensor& input, const Tensor& output) override {
    require_host(context, input, "reduce_scatter");
    require_host(context, output, "reduce_scatter");
    require(input.dtype == output.dtype && input.elements() == output.elements() * size_,
            "reduce_scatter: ", input.elements(), " elements in, ", output.elements(), " out, ", size_, " ranks");
    dispatch_reducible(output.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const std::int64_t part = piece_bytes / static_cast<std::int64_t>(sizeof(T));
      const std::int64_t n = output.elements();
      for (std::int64_t begin = 0; begin < n; begin += part) {
        const std::int64_t count = std::min(part, n - begin);
        for (int r = 0; r < size_; ++r) set_part(r, (r * n) * sizeof(T), count * sizeof(T));
        exchange_and_reduce(static_cast<const T*>(input.data) + begin, static_cast<T*>(output.data) + begin,
                            ReduceOp::sum);
      }
    });
  }

  void all_gather(const Context& context, const ConstTensor& input, const Tensor& output) override {
    require_host(context, input, "all_gather");
    require_host(context, output, "all_gather");
    require(input.dtype == output.dtype && input.elements() * size_ == output.elements(),
            "all_gather: ", input.elements(), " elements in, ", output.elements(), " out, ", size_, " ranks");
    const std::int64_t n = static_cast<std::int64_t>(input.bytes());
    for (std::int64_t begin = 0; begin < n; begin += piece_bytes) {
      const int count = static_cast<int>(std::min<std::int64_t>(piece_bytes, n - begin));
      check(MPI_Allgather(static_cast<const char*>(input.data) + begin, count, MPI_BYTE, staging_.data(), count,
                          MPI_BYTE, comm_),
            "MPI_Allgather");
      for (int r = 0; r < size_; ++r) {
        std::memcpy(static_cast<char*>(output.data) + r * n + begin, staging_.data() + std::int64_t{r} * count,
                    static_cast<std::size_t>(count));
      }
    }
  }

  void broadcast(const Context& context, const Tensor& data, int root) override {
    require_host(context, data, "broadcast");
    require(root >= 0 && root < size_, "broadcast: root ", root, " of ", size_, " ranks");
    const std::int64_t n = static_cast<std::int64_t>(data.bytes());
    for (std::int64_t begin = 0; begin < n; begin += piece_bytes) {
      const int count = static_cast<int>(std::min<std::int64_t>(piece_bytes, n - begin));
      check(MPI_Bcast(static_cast<char*>(data.data) + begin, count, MPI_BYTE, root, comm_), "MPI_Bcast");
    }
  }

  void barrier(const Context&) override { check(MPI_Barrier(comm_), "MPI_Barrier"); }

 private:
  static constexpr std::int64_t piece_bytes = 1 << 20;

  static void require_host(const Context& context, const ConstTensor& data, const char* what) {
    require(context.device().is_cpu() && data.device.is_cpu() && data.contiguous(), what,
            ": MPI's ranks need contiguous host memory");
  }

  // Where rank r's part of a piece begins and how long it is, in bytes.
  void set_part(int r, std::size_t offset, std::size_t bytes) {
    offsets_[static_cast<std::size_t>(r)] = static_cast<MPI_Aint>(offset);
    bytes_[static_cast<std::size_t>(r)] = static_cast<int>(bytes);
  }

  // Sends each rank its part of `data`, and reduces what comes for this rank in the order of the ranks.
  template <class T>
  void exchange_and_reduce(const T* data, T* out, ReduceOp op) {
    const char* from = reinterpret_cast<const char*>(data);
    const int mine = bytes_[static_cast<std::size_t>(rank_)];
    for (int shift = 0; shift < size_; ++shift) {
      const int to = (rank_ + shift) % size_, source = (rank_ - shift + size_) % size_;
      const std::size_t t = static_cast<std::size_t>(to);
      check(MPI_Sendrecv(from + offsets_[t], bytes_[t], MPI_BYTE, to, 0, staging_.data() + std::int64_t{source} * mine,
                         mine, MPI_BYTE, source, 0, comm_, MPI_STATUS_IGNORE),
            "MPI_Sendrecv");
    }
    const std::int64_t count = mine / static_cast<std::int64_t>(sizeof(T));
    const T* received = reinterpret_cast<const T*>(staging_.data());
    for (std::int64_t i = 0; i < count; ++i) {
      T value = received[i];
      for (int r = 1; r < size_; ++r) {
        const T other = received[r * count + i];
        value = op == ReduceOp::sum ? value + other : std::max(value, other);
      }
      out[i] = value;
    }
  }

  template <class T>
  void reduce_piece(T* values, std::int64_t count, ReduceOp op) {
    const std::int64_t part = (count + size_ - 1) / size_;
    for (int r = 0; r < size_; ++r) {
      const std::int64_t begin = std::min(count, r * part), end = std::min(count, begin + part);
      set_part(r, begin * sizeof(T), (end - begin) * sizeof(T));
    }
    exchange_and_reduce(values, values + std::min(count, rank_ * part), op);
    // Within a piece offsets fit MPI's int.
    for (std::size_t r = 0; r < offsets_.size(); ++r) piece_offsets_[r] = static_cast<int>(offsets_[r]);
    check(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_BYTE, values, bytes_.data(), piece_offsets_.data(), MPI_BYTE, comm_),
          "MPI_Allgatherv");
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::vector<char> staging_;  // the ranks' versions of this rank's part
  std::vector<MPI_Aint> offsets_;
  std::vector<int> bytes_, piece_offsets_;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_ranks(int expected) {
  int initialized = 0;
  check(MPI_Initialized(&initialized), "MPI_Initialized");
  if (!initialized) {
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    std::atexit([] {
      int finalized = 0;
      if (MPI_Finalized(&finalized) == MPI_SUCCESS && !finalized) MPI_Finalize();
    });
  }
  auto ranks = std::make_unique<MpiRanks>();
  if (ranks->size() != expected) {
    throw_runtime("MPI sees ", ranks->size(), " ranks where the launcher started ", expected,
                  ": mpirun and the MPI library that this program was built with are of different kinds");
  }
  return ranks;
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
  check(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  return std::string(text, static_cast<std::size_t>(length));
}

}  // namespace greyhound
