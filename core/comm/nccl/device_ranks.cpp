// Device memory through NCCL, host memory through the ranks that MPI started.
#include <greyhound/core/comm/nccl/nccl_ranks.h>

#include <memory>
#include <utility>

namespace greyhound {

namespace {

class DeviceRanks final : public Communicator {
 public:
  DeviceRanks(std::unique_ptr<Communicator> host, const Context& context)
      : host_(std::move(host)), device_(context, *host_) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  void all_reduce(const Context& context, const Tensor& data, ReduceOp op) override {
    of(data).all_reduce(context, data, op);
  }
  void reduce_scatter(const Context& context, const ConstTensor& input, const Tensor& output) override {
    of(output).reduce_scatter(context, input, output);
  }
  void all_gather(const Context& context, const ConstTensor& input, const Tensor& output) override {
    of(output).all_gather(context, input, output);
  }
  void broadcast(const Context& context, const Tensor& data, int root) override {
    of(data).broadcast(context, data, root);
  }
  void barrier(const Context& context) override {
    context.synchronize();
    device_.check();
    host_->barrier(context);
  }
  void start_all_reduce(const Context& context, const Tensor& data) override {
    of(data).start_all_reduce(context, data);
  }
  void join(const Context& context) override {
    host_->join(context);
    device_.join(context);
  }
  double take_exposed_ms() override {
    host_->take_exposed_ms();  // the host is ahead of the device, whose time it is that counts
    return device_.take_exposed_ms();
  }
  void set_timeout(double seconds) override {
    host_->set_timeout(seconds);
    device_.set_timeout(seconds);
  }
  void check() override {
    host_->check();
    device_.check();
  }
  bool failed() const override { return host_->failed() || device_.failed(); }

 private:
  Communicator& of(const ConstTensor& data) {
    return data.device.is_cpu() ? *host_ : static_cast<Communicator&>(device_);
  }

  std::unique_ptr<Communicator> host_;
  NcclRanks device_;
};

}  // namespace

std::unique_ptr<Communicator> make_device_communicator(std::unique_ptr<Communicator> host, const Context& context) {
  if (host->size() == 1) return host;
  return std::make_unique<DeviceRanks>(std::move(host), context);
}

std::unique_ptr<Communicator> wrap_nccl(const Context& context, void* nccl_comm, void* stream) {
  return std::make_unique<NcclRanks>(context, static_cast<ncclComm_t>(nccl_comm), static_cast<cudaStream_t>(stream));
}

}  // namespace greyhound
