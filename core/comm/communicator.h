// Collectives over the ranks of a run. Part of greyhound::comm, so that importers of the loss module
// link neither NCCL nor MPI.
#pragma once

#include <greyhound/core/memory.h>
#include <greyhound/core/tensor.h>

#include <memory>
#include <string>

namespace greyhound {

enum class ReduceOp { sum, max };

// Every rank calls the same operations in the same order with the same shapes. Tensors are contiguous
// and live on the communicator's device; work is ordered after what is on the context's stream.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  bool is_root() const { return rank() == 0; }

  // In place: every rank gets the reduction over all ranks, with the same bits on every rank and in
  // every run. fp32, fp64, int32, int64.
  virtual void all_reduce(const Context& context, const Tensor& data, ReduceOp op = ReduceOp::sum) = 0;
  // `input` [size * n] is reduced over the ranks; this rank gets part rank() in `output` [n].
  virtual void reduce_scatter(const Context& context, const ConstTensor& input, const Tensor& output) = 0;
  // The ranks' `input` [n], one after the other, in `output` [size * n] on every rank.
  virtual void all_gather(const Context& context, const ConstTensor& input, const Tensor& output) = 0;
  virtual void broadcast(const Context& context, const Tensor& data, int root = 0) = 0;
  virtual void barrier(const Context& context) = 0;
};

// The communicator of a run with one rank: calls neither MPI nor NCCL.
GREYHOUND_API std::unique_ptr<Communicator> make_single_rank();

}  // namespace greyhound
