// Collectives over the ranks of a run. The functions that make communicators are part of greyhound::comm, so that
// importers of the loss module link neither NCCL nor MPI.
#pragma once

#include <greyhound/core/memory.h>
#include <greyhound/core/tensor.h>

#include <memory>
#include <string>

namespace greyhound {

enum class ReduceOp { sum, max };

// Every rank calls the same operations in the same order with the same shapes, from one host thread. Tensors are
// contiguous. Those in host memory are complete when the call returns (MPI, one rank); device memory is handled in the
// order of the context's stream, by work on a stream of the communicator's own (NCCL).
//
// A failure of another rank throws a runtime Error that names it: a process of this host that has ended within a
// second, anything else after the time-out.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  bool is_root() const { return rank() == 0; }

  // In place: every rank gets the reduction over all ranks, with the same bits on every rank and in every run with as
  // many ranks. fp32, fp64, int32, int64 and, as a sum, bf16 (in host memory summed in fp32 and rounded once).
  virtual void all_reduce(const Context& context, const Tensor& data, ReduceOp op = ReduceOp::sum) = 0;
  // `input` [size * n] is summed over the ranks; this rank gets part rank() in `output` [n]. Dtypes as above.
  virtual void reduce_scatter(const Context& context, const ConstTensor& input, const Tensor& output) = 0;
  // The ranks' `input` [n], one after the other, in `output` [size * n] on every rank. Any dtype.
  virtual void all_gather(const Context& context, const ConstTensor& input, const Tensor& output) = 0;
  virtual void broadcast(const Context& context, const Tensor& data, int root = 0) = 0;
  // Returns when every rank has called it, and what was on their contexts' streams before is done.
  virtual void barrier(const Context& context) = 0;

  // A sum as all_reduce makes it, to the bit, that runs beside what the caller enqueues or computes meanwhile. It
  // begins after the work that is on the context's stream now. `data` must not be touched before join(), after which
  // the sums are there for the host (host memory) or for what is enqueued on the stream from then on (device memory).
  virtual void start_all_reduce(const Context& context, const Tensor& data) = 0;
  virtual void join(const Context& context) = 0;

  // Milliseconds, since the last call, for which this rank's host thread (host memory) or the contexts' streams (device
  // memory) waited for communication that nothing hid. Waits of a stream that are not over are left to a later call.
  virtual double take_exposed_ms() = 0;

  // How long the ranks may be waited for, in seconds; 0, the initial value, stands for ever.
  virtual void set_timeout(double seconds) = 0;
  // Throws when an operation has failed since it was enqueued: what it should have written is undefined then, and
  // failed() stays true. Results that came through device memory are to be believed after the stream was synchronised
  // and this returned.
  virtual void check() = 0;
  virtual bool failed() const = 0;
};

// The communicator of a run with one rank: calls neither MPI nor NCCL.
GREYHOUND_API std::unique_ptr<Communicator> make_single_rank();

// Over an MPI communicator of the caller, which stays the caller's and must outlive this one: a duplicate of it is
// used. `fortran_handle` is MPI_Comm_c2f(comm), whose type is the same in every MPI. Collective. MPI must be
// initialised.
GREYHOUND_API std::unique_ptr<Communicator> wrap_mpi(int fortran_handle);

// Over an ncclComm_t and a cudaStream_t (of the context's device) of the caller, which stay the caller's and must
// outlive this one. Collectives run on `stream`, ordered against the contexts given to them. The caller sees to
// time-outs and aborts; check() asks ncclCommGetAsyncError.
GREYHOUND_API std::unique_ptr<Communicator> wrap_nccl(const Context& context, void* nccl_comm, void* stream);

// NCCL over the ranks of `host`, each with the GPU of its context, for device memory; tensors in host memory go through
// `host`. A stream of its own; errors and time-outs are watched, and abort what hangs. Collective.
GREYHOUND_API std::unique_ptr<Communicator> make_device_communicator(std::unique_ptr<Communicator> host,
                                                                     const Context& context);

}  // namespace greyhound
