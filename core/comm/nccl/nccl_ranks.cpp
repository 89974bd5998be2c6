#include <greyhound/core/comm/nccl/nccl_ranks.h>

#include <signal.h>

#include <exception>
#include <utility>

namespace greyhound {

namespace {

constexpr auto poll_interval = std::chrono::milliseconds(100);
constexpr std::size_t most_waits = 256;

}  // namespace

NcclRanks::NcclRanks(const Context& context, ncclComm_t comm, cudaStream_t stream)
    : device_(context.device().index), owned_(false), comm_(comm), stream_(stream) {
  require(context.device().is_cuda(), "wrap_nccl: the context is on ", to_string(context.device()));
  require(comm != nullptr, "wrap_nccl: no communicator given");
  int device = 0;
  settle(nccl().comm_user_rank(comm_, &rank_), "ncclCommUserRank");
  settle(nccl().comm_count(comm_, &size_), "ncclCommCount");
  settle(nccl().comm_cu_device(comm_, &device), "ncclCommCuDevice");
  require(device == device_, "wrap_nccl: the communicator is on cuda:", device, ", the context on cuda:", device_);
  make_events(context);
}

NcclRanks::NcclRanks(const Context& context, Communicator& host)
    : device_(context.device().index), owned_(true), rank_(host.rank()), size_(host.size()) {
  require(context.device().is_cuda(), "NCCL: the context is on ", to_string(context.device()));
  const cuda::DeviceScope scope(device_);
  // Collectives should begin as soon as they can: the compute stream fills the device.
  int least = 0, greatest = 0;
  cuda::check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  cuda::check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "cudaStreamCreateWithPriority");
  make_events(context);
  connect(host);
  // Signals are the main thread's.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  watchdog_ = std::thread([this] { watch(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void NcclRanks::make_events(const Context& context) {
  const cuda::DeviceScope scope(device_);
  cuda::check(cudaEventCreateWithFlags(&before_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  cuda::check(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  one_ = Tensor(allocate(context.device(), sizeof(std::int32_t)), DType::int32, {1}, context.device());
  zero(context.with_stream(stream_), one_);
}

// The root's id goes to everybody through the host's communicator; then all connect without blocking, so that one who
// never comes is noticed.
void NcclRanks::connect(Communicator& host) {
  const Context on_host = Context::cpu();
  const ProcessId own = this_process();
  std::vector<ProcessId> processes(static_cast<std::size_t>(size_));
  const auto bytes = static_cast<std::int64_t>(sizeof own);
  host.all_gather(on_host, tensor(static_cast<const void*>(&own), DType::uint8, {bytes}),
                  tensor(static_cast<void*>(processes.data()), DType::uint8, {bytes * size_}));
  peers_ = Peers(std::move(processes), rank_);

  ncclUniqueId id{};
  std::int64_t made = 1;
  std::string problem;
  if (rank_ == 0) {
    const ncclResult_t result = nccl().get_unique_id(&id);
    if (result != ncclSuccess) {
      made = 0;
      problem = text_of(result);
    }
  }
  host.broadcast(on_host, tensor(static_cast<void*>(&made), DType::int64, {1}));
  if (made == 0) throw_runtime("NCCL: rank 0 cannot make an id: ", rank_ == 0 ? problem : "see its message");
  host.broadcast(on_host, tensor(static_cast<void*>(&id), DType::uint8, {static_cast<std::int64_t>(sizeof id)}));

  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  settle(nccl().comm_init_rank_config(&comm_, size_, id, rank_, &config), "ncclCommInitRankConfig");
}

NcclRanks::~NcclRanks() {
  if (watchdog_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    watchdog_.join();
  }
  int device_before = 0;
  if (cudaGetDevice(&device_before) != cudaSuccess || cudaSetDevice(device_) != cudaSuccess) return;
  if (owned_ && comm_ != nullptr) {
    // Finalising waits for all ranks, which do not come when an exception ends this one.
    bool finalized = false;
    if (std::uncaught_exceptions() == 0) {
      try {
        timeout_ = 10;
        settle(nccl().comm_finalize(comm_), "ncclCommFinalize");
        finalized = true;
      } catch (const Error&) {
      }
    }
    if (comm_ != nullptr) (void)(finalized ? nccl().comm_destroy(comm_) : nccl().comm_abort(comm_));
  }
  unused_.insert(unused_.end(), waits_.begin(), waits_.end());
  for (const Wait& wait : unused_) {
    (void)cudaEventDestroy(wait.begin);
    (void)cudaEventDestroy(wait.end);
  }
  (void)cudaEventDestroy(before_);
  (void)cudaEventDestroy(done_);
  if (owned_) (void)cudaStreamDestroy(stream_);
  (void)cudaSetDevice(device_before);
  deallocate(one_.device, one_.data);
}

std::string NcclRanks::text_of(ncclResult_t result) const {
  const char* more = nccl().get_last_error(comm_);
  return concat(nccl().get_error_string(result), more != nullptr && *more != '\0' ? std::string(": ") + more : "");
}

void NcclRanks::settle(ncclResult_t result, const char* what) {
  const Clock::time_point start = Clock::now();
  Clock::time_point next_look = start + poll_interval;
  while (result == ncclInProgress) {
    const ncclResult_t asked = nccl().comm_get_async_error(comm_, &result);
    if (asked != ncclSuccess) result = asked;
    if (result != ncclInProgress) break;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    const Clock::time_point now = Clock::now();
    if (now < next_look) continue;
    next_look = now + poll_interval;
    if (const int ended = peers_.ended(); ended >= 0) {
      fail(concat(peers_.describe(ended), " has ended; this rank waited in ", what));
    } else if (timeout_ > 0 && std::chrono::duration<double>(now - start).count() > timeout_) {
      fail(concat("NCCL: ", what, " did not end within ", timeout_, " s"));
    }
    if (!failure_.empty()) throw_runtime(failure_);
  }
  if (result == ncclSuccess) return;
  const std::string message = concat("NCCL: ", what, ": ", text_of(result));
  if (owned_) fail(message);
  throw_runtime(message);
}

void NcclRanks::fail(const std::string& message) {
  failure_ = message;
  if (owned_ && comm_ != nullptr) (void)nccl().comm_abort(std::exchange(comm_, nullptr));
}

void NcclRanks::require_device(const ConstTensor& data, const char* what) const {
  require(data.device == Device::cuda(device_) && data.contiguous(), what,
          ": expected contiguous memory of cuda:", device_, ", got ", to_string(data.device));
}

ncclDataType_t NcclRanks::type_of(const ConstTensor& data, const char* what) const {
  require_device(data, what);
  switch (data.dtype) {
    case DType::fp32: return ncclFloat32;
    case DType::fp64: return ncclFloat64;
    case DType::int32: return ncclInt32;
    case DType::int64: return ncclInt64;
    case DType::bf16: return ncclBfloat16;
    default: throw_usage(what, ": expected fp32, fp64, int32, int64 or bf16, got ", name_of(data.dtype));
  }
}

// The communicator's stream waits for the context's, then does the operation.
template <class Operation>
void NcclRanks::enqueue(const Context& context, const char* what, Operation&& operation) {
  require(context.device() == Device::cuda(device_), what, ": the context is on ", to_string(context.device()),
          ", the communicator on cuda:", device_);
  const cuda::DeviceScope scope(device_);
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw_runtime(failure_);
  last_ = what;
  if (owned_) {  // for the watchdog
    if (!outstanding_ || cudaEventQuery(done_) == cudaSuccess) since_ = Clock::now();
    (void)cudaGetLastError();  // "not ready" is no failure
    outstanding_ = true;
  }
  cuda::check(cudaEventRecord(before_, cuda::stream_of(context.stream())), "cudaEventRecord");
  cuda::check(cudaStreamWaitEvent(stream_, before_, 0), "cudaStreamWaitEvent");
  settle(operation(), what);
  cuda::check(cudaEventRecord(done_, stream_), "cudaEventRecord");
}

void NcclRanks::enqueue_all_reduce(const Context& context, const Tensor& data, ReduceOp op) {
  const ncclDataType_t type = type_of(data, "all_reduce");
  require(op == ReduceOp::sum || data.dtype != DType::bf16, "all_reduce: the maximum of bf16 is not there");
  enqueue(context, "all_reduce", [&] {
    return nccl().all_reduce(data.data, data.data, static_cast<std::size_t>(data.elements()), type,
                             op == ReduceOp::sum ? ncclSum : ncclMax, comm_, stream_);
  });
}

void NcclRanks::all_reduce(const Context& context, const Tensor& data, ReduceOp op) {
  enqueue_all_reduce(context, data, op);
  join(context);
}

void NcclRanks::start_all_reduce(const Context& context, const Tensor& data) {
  enqueue_all_reduce(context, data, ReduceOp::sum);
}

void NcclRanks::reduce_scatter(const Context& context, const ConstTensor& input, const Tensor& output) {
  const ncclDataType_t type = type_of(output, "reduce_scatter");
  require_device(input, "reduce_scatter");
  require(input.dtype == output.dtype && input.elements() == output.elements() * size_,
          "reduce_scatter: ", input.elements(), " elements in, ", output.elements(), " out, ", size_, " ranks");
  enqueue(context, "reduce_scatter", [&] {
    return nccl().reduce_scatter(input.data, output.data, static_cast<std::size_t>(output.elements()), type, ncclSum,
                                 comm_, stream_);
  });
  join(context);
}

void NcclRanks::all_gather(const Context& context, const ConstTensor& input, const Tensor& output) {
  require_device(input, "all_gather");
  require_device(output, "all_gather");
  require(input.dtype == output.dtype && input.elements() * size_ == output.elements(),
          "all_gather: ", input.elements(), " elements in, ", output.elements(), " out, ", size_, " ranks");
  enqueue(context, "all_gather",
          [&] { return nccl().all_gather(input.data, output.data, input.bytes(), ncclUint8, comm_, stream_); });
  join(context);
}

void NcclRanks::broadcast(const Context& context, const Tensor& data, int root) {
  require_device(data, "broadcast");
  require(root >= 0 && root < size_, "broadcast: root ", root, " of ", size_, " ranks");
  enqueue(context, "broadcast",
          [&] { return nccl().broadcast(data.data, data.data, data.bytes(), ncclUint8, root, comm_, stream_); });
  join(context);
}

void NcclRanks::barrier(const Context& context) {
  all_reduce(context, one_, ReduceOp::sum);
  context.synchronize();
  check();
}

// The context's stream waits for the communicator's; events on either side of the wait say for how long.
void NcclRanks::join(const Context& context) {
  check();
  const cuda::DeviceScope scope(device_);
  const cudaStream_t stream = cuda::stream_of(context.stream());
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cuda::check(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing");
  // Not in a graph, and not when nobody takes the times.
  const bool timed = capture == cudaStreamCaptureStatusNone && waits_.size() < most_waits;
  if (timed && unused_.empty()) {
    Wait wait;
    cuda::check(cudaEventCreate(&wait.begin), "cudaEventCreate");
    cuda::check(cudaEventCreate(&wait.end), "cudaEventCreate");
    unused_.push_back(wait);
  }
  if (timed) cuda::check(cudaEventRecord(unused_.back().begin, stream), "cudaEventRecord");
  cuda::check(cudaStreamWaitEvent(stream, done_, 0), "cudaStreamWaitEvent");
  if (!timed) return;
  cuda::check(cudaEventRecord(unused_.back().end, stream), "cudaEventRecord");
  waits_.push_back(unused_.back());
  unused_.pop_back();
}

// Only waits that are over: later steps may be enqueued already.
double NcclRanks::take_exposed_ms() {
  const cuda::DeviceScope scope(device_);
  double total = 0;
  while (!waits_.empty() && cudaEventQuery(waits_.front().end) == cudaSuccess) {
    float ms = 0;
    cuda::check(cudaEventElapsedTime(&ms, waits_.front().begin, waits_.front().end), "cudaEventElapsedTime");
    total += ms;
    unused_.push_back(waits_.front());
    waits_.pop_front();
  }
  (void)cudaGetLastError();  // "not ready" is no failure
  return total;
}

void NcclRanks::set_timeout(double seconds) {
  const std::lock_guard lock(mutex_);
  timeout_ = seconds;
}

void NcclRanks::check() {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw_runtime(failure_);
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = nccl().comm_get_async_error(comm_, &result);
  if (asked == ncclSuccess && (result == ncclSuccess || result == ncclInProgress)) return;
  fail(concat("NCCL: ", last_, ": ", text_of(asked == ncclSuccess ? result : asked)));
  throw_runtime(failure_);
}

bool NcclRanks::failed() const {
  const std::lock_guard lock(mutex_);
  return !failure_.empty();
}

void NcclRanks::watch() {
  // Questions of this thread must not spoil a graph that another one captures.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (cudaSetDevice(device_) != cudaSuccess || cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) return;
  std::unique_lock lock(mutex_);
  while (!ending_ && failure_.empty()) {
    changed_.wait_for(lock, poll_interval);
    if (ending_ || !outstanding_ || comm_ == nullptr) continue;
    const cudaError_t state = cudaEventQuery(done_);
    if (state == cudaSuccess) {
      outstanding_ = false;
      continue;
    }
    (void)cudaGetLastError();
    ncclResult_t result = ncclSuccess;
    const ncclResult_t asked = nccl().comm_get_async_error(comm_, &result);
    if (state != cudaErrorNotReady) {
      fail(concat("NCCL: ", last_, ": ", cudaGetErrorString(state)));
    } else if (asked != ncclSuccess || (result != ncclSuccess && result != ncclInProgress)) {
      fail(concat("NCCL: ", last_, ": ", text_of(asked == ncclSuccess ? result : asked)));
    } else if (const int ended = peers_.ended(); ended >= 0) {
      fail(concat(peers_.describe(ended), " has ended; this rank waited for all ranks in ", last_));
    } else if (timeout_ > 0 && std::chrono::duration<double>(Clock::now() - since_).count() > timeout_) {
      fail(concat("NCCL: ", last_, " did not end within ", timeout_, " s"));
    }
  }
}

}  // namespace greyhound
