// How a process learns which rank of a run it is.
#pragma once

#include <greyhound/core/comm/communicator.h>

#include <memory>
#include <string>

namespace greyhound {

// How many ranks the launcher started (mpirun of Open MPI and MPICH, Slurm's PMI and PMIx): 1 when this process was
// started by itself. Looks at environment variables alone.
GREYHOUND_API int launched_ranks();

// The communicator of this process for collectives on host memory: one rank, which calls no MPI at all, or MPI's
// ranks. MPI is initialised at the first call and finalised when the process ends. Throws a runtime Error when several
// ranks were started and this build has no MPI, so that they do not all run the same work.
GREYHOUND_API std::unique_ptr<Communicator> make_host_communicator();

// Ends every rank of the run with this exit code; does nothing where MPI was not started. A rank that fails calls
// it before it ends, so that the others do not wait for it.
GREYHOUND_API void abort_ranks(int exit_code) noexcept;

// "Open MPI v4.1.4, ..." as found at run time; empty in a build without MPI.
GREYHOUND_API std::string mpi_library_version();

}  // namespace greyhound
