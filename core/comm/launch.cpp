#include <greyhound/core/comm/launch.h>

#include <greyhound/core/comm/mpi_ranks.h>

#include <cstdlib>

namespace greyhound {

int launched_ranks() {
  // SLURM_NTASKS alone means nothing: a plain program inside an allocation sees it too.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "MPI_LOCALNRANKS"}) {
    if (const char* value = std::getenv(name)) {
      const int ranks = std::atoi(value);
      if (ranks > 1) return ranks;
    }
  }
  return 1;
}

std::unique_ptr<Communicator> make_host_communicator() {
  const int ranks = launched_ranks();
  if (ranks == 1) return make_single_rank();
  return make_mpi_ranks(ranks);
}

void abort_ranks(int exit_code) noexcept { mpi_abort(exit_code); }

std::string mpi_library_version() { return mpi_version(); }

}  // namespace greyhound
