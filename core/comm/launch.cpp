#include <greyhound/core/comm/launch.h>

#include <greyhound/core/comm/mpi_ranks.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>

namespace greyhound {

namespace {

// The first of the variables that is set, as a number of ranks; 0 when none is.
int number_in(std::initializer_list<const char*> variables) {
  for (const char* name : variables) {
    if (const char* value = std::getenv(name)) return std::max(1, std::atoi(value));
  }
  return 0;
}

}  // namespace

int launched_ranks() {
  int ranks = number_in({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "MPI_LOCALNRANKS"});
  // srun --mpi=pmix says how many through Slurm's variables alone. By themselves these mean nothing: a plain program
  // inside an allocation sees them too.
  if (ranks == 0 && std::getenv("PMIX_RANK") != nullptr) ranks = number_in({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
  return std::max(1, ranks);
}

std::unique_ptr<Communicator> make_host_communicator() {
  const int ranks = launched_ranks();
  if (ranks == 1) return make_single_rank();
  return make_mpi_ranks(ranks);
}

void abort_ranks(int exit_code) noexcept { mpi_abort(exit_code); }

std::string mpi_library_version() { return mpi_version(); }

}  // namespace greyhound
