// How a process learns which rank of a run it is, and which GPU is its own.
#pragma once

#include <greyhound/core/comm/communicator.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace greyhound {

// How many ranks the launcher started (mpirun of Open MPI and MPICH, Slurm's PMI and PMIx): 1 when this process was
// started by itself. Looks at environment variables alone.
GREYHOUND_API int launched_ranks();

// The communicator of this process for collectives on host memory: one rank, which calls no MPI at all, or MPI's
// ranks. MPI is initialised at the first call and finalised when the process ends. Throws a runtime Error when several
// ranks were started and this build has no MPI, so that they do not all run the same work.
GREYHOUND_API std::unique_ptr<Communicator> make_host_communicator();

// This rank among those on the same host. Collective.
struct LocalRank {
  int rank = 0, size = 1;
};
GREYHOUND_API LocalRank local_rank(Communicator& host);

// The GPU for this rank, as the CUDA runtime counts here: the local rank's, or the only one that the launcher shows it.
// A single rank takes number 0; -1 when no rank sees any. Collective over the ranks of `host`. Throws a usage Error, on
// every rank, that names local rank, devices seen and CUDA_VISIBLE_DEVICES when two ranks would share a GPU or one sees
// none.
GREYHOUND_API int choose_gpu(Communicator& host);

// What a rank sees of its host's GPUs, and which it would take.
struct GpuClaim {
  std::uint64_t host = 0;  // the same for ranks of one host
  std::string host_name;
  std::int64_t devices = 0;
  std::string gpu;      // "GPU-" and its UUID; empty when there is none
  std::string visible;  // CUDA_VISIBLE_DEVICES, or "not set"
};
// The check of choose_gpu, over the claims of all ranks in order.
GREYHOUND_API void require_gpus(const std::vector<GpuClaim>& claims);

// Ends every rank of the run with this exit code; does nothing where MPI was not started. A rank that fails calls
// it before it ends, so that the others do not wait for it.
GREYHOUND_API void abort_ranks(int exit_code) noexcept;

// "Open MPI v4.1.4, ..." as found at run time; empty in a build without MPI.
GREYHOUND_API std::string mpi_library_version();

// Of NCCL as it counts (22807 is 2.28.7): what this build was made with, and what is found at run time; 0: none.
GREYHOUND_API int nccl_built_version();
GREYHOUND_API int nccl_found_version();

}  // namespace greyhound
