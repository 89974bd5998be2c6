// The ranks that MPI started. Implemented in mpi/, or by no_mpi.cpp in builds without MPI. Internal.
#pragma once

#include <greyhound/core/comm/communicator.h>

#include <memory>
#include <string>

namespace greyhound {

// `expected`: the number of ranks that the launcher announced.
std::unique_ptr<Communicator> make_mpi_ranks(int expected);
void mpi_abort(int exit_code) noexcept;
std::string mpi_version();

}  // namespace greyhound
