// Collectives of NCCL on device memory. Internal.
#pragma once

#include <greyhound/core/comm/communicator.h>
#include <greyhound/core/comm/nccl/nccl_api.h>
#include <greyhound/core/comm/peers.h>
#include <greyhound/core/cuda/device_scope.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace greyhound {

class NcclRanks final : public Communicator {
 public:
  // Over the caller's communicator and stream.
  NcclRanks(const Context& context, ncclComm_t comm, cudaStream_t stream);
  // Of its own, over the ranks of `host`, which hands the id round; `host` must outlive it. Watched by a thread, which
  // aborts the communicator when a rank has ended, when NCCL reports an error, and on a time-out: work that waits on
  // the device comes to an end, and check() says why.
  NcclRanks(const Context& context, Communicator& host);
  ~NcclRanks() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_reduce(const Context& context, const Tensor& data, ReduceOp op) override;
  void reduce_scatter(const Context& context, const ConstTensor& input, const Tensor& output) override;
  void all_gather(const Context& context, const ConstTensor& input, const Tensor& output) override;
  void broadcast(const Context& context, const Tensor& data, int root) override;
  void barrier(const Context& context) override;
  void start_all_reduce(const Context& context, const Tensor& data) override;
  void join(const Context& context) override;
  double take_exposed_ms() override;
  void set_timeout(double seconds) override;
  void check() override;
  bool failed() const override;

 private:
  using Clock = std::chrono::steady_clock;

  void make_events(const Context& context);
  void connect(Communicator& host);
  void enqueue_all_reduce(const Context& context, const Tensor& data, ReduceOp op);
  template <class Operation>
  void enqueue(const Context& context, const char* what, Operation&& operation);
  ncclDataType_t type_of(const ConstTensor& data, const char* what) const;
  void require_device(const ConstTensor& data, const char* what) const;
  void settle(ncclResult_t result, const char* what);  // until a call that does not block is through
  std::string text_of(ncclResult_t result) const;
  void watch();
  void fail(const std::string& message);  // with mutex_ held

  const int device_;
  const bool owned_;
  ncclComm_t comm_ = nullptr;  // nullptr after an abort
  cudaStream_t stream_ = nullptr;
  int rank_ = 0, size_ = 1;
  Tensor one_;                                     // [1] int32 on the device, for barrier
  cudaEvent_t before_ = nullptr, done_ = nullptr;  // the context's stream so far; the last collective
  // Of a context's stream for collectives: recorded on either side of it.
  struct Wait {
    cudaEvent_t begin = nullptr, end = nullptr;
  };
  std::deque<Wait> waits_;    // whose time has not been taken
  std::vector<Wait> unused_;  // to be used again

  mutable std::mutex mutex_;  // of what follows, and of calls that take comm_
  Peers peers_;
  std::string failure_;
  double timeout_ = 0;
  bool outstanding_ = false;  // something was enqueued that was not seen to be done
  Clock::time_point since_;   // when the communicator was last seen idle, then
  const char* last_ = "";     // collective
  bool ending_ = false;
  std::condition_variable changed_;
  std::thread watchdog_;
};

}  // namespace greyhound
