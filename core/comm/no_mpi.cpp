#include <greyhound/core/comm/mpi_ranks.h>

#include <greyhound/core/error.h>

namespace greyhound {

std::unique_ptr<Communicator> make_mpi_ranks(int expected) {
  throw_runtime(expected,
                " ranks were started, but this build has no MPI; configure with -DGREYHOUND_MPI=ON "
                "(apt-get install libopenmpi-dev), or start one process without mpirun");
}

std::unique_ptr<Communicator> wrap_mpi(int) {
  throw_runtime("wrap_mpi: this build has no MPI; configure with -DGREYHOUND_MPI=ON (apt-get install libopenmpi-dev)");
}

void mpi_abort(int) noexcept {}

std::string mpi_version() { return ""; }

}  // namespace greyhound
