#include <greyhound/core/comm/launch.h>

#include <doctest/doctest.h>

#include <cstdlib>
#include <utility>
#include <vector>

using namespace greyhound;

TEST_CASE("single rank: every collective is the identity") {
  const std::unique_ptr<Communicator> communicator = make_single_rank();
  const Context context = Context::cpu(1);
  CHECK(communicator->rank() == 0);
  CHECK(communicator->size() == 1);
  CHECK(communicator->is_root());

  float data[3] = {1, 2, 3}, out[3] = {};
  const Tensor tensor(data, DType::fp32, {3}), other(out, DType::fp32, {3});
  communicator->all_reduce(context, tensor);
  communicator->all_reduce(context, tensor, ReduceOp::max);
  communicator->broadcast(context, tensor);
  communicator->barrier(context);
  CHECK(data[2] == 3);
  communicator->reduce_scatter(context, tensor, other);
  CHECK(out[2] == 3);
  data[0] = 9;
  communicator->all_gather(context, tensor, other);
  CHECK(out[0] == 9);
  communicator->reduce_scatter(context, tensor, tensor);  // in place
  CHECK(data[0] == 9);
  CHECK_THROWS_WITH_AS(communicator->broadcast(context, tensor, 1), "broadcast: root 1 of 1 rank", Error);
  CHECK_THROWS_AS(communicator->all_gather(context, tensor, Tensor(out, DType::fp32, {2})), Error);
}

TEST_CASE("single rank: what is started is done, and nothing is waited for") {
  const std::unique_ptr<Communicator> communicator = make_single_rank();
  const Context context = Context::cpu(1);
  float value = 3;
  communicator->start_all_reduce(context, Tensor(&value, DType::fp32, {1}));
  communicator->join(context);
  CHECK(value == 3);
  CHECK(communicator->take_exposed_ms() == 0);
  communicator->set_timeout(1);
  CHECK_NOTHROW(communicator->check());
  CHECK_FALSE(communicator->failed());
  // On a GPU as well: neither NCCL nor MPI is asked.
  const std::unique_ptr<Communicator> same = make_device_communicator(make_single_rank(), context);
  CHECK(same->size() == 1);
  CHECK(local_rank(*same).size == 1);
  CHECK(choose_gpu(*same) == 0);
}

TEST_CASE("launched ranks: what mpirun, PMI and Slurm's PMIx say; an allocation alone says nothing") {
  const char* names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",  "MV2_COMM_WORLD_SIZE",
                         "MPI_LOCALNRANKS",      "PMIX_RANK", "SLURM_NTASKS",
                         "SLURM_STEP_NUM_TASKS"};
  const auto ranks_with = [&](const std::vector<std::pair<const char*, const char*>>& variables) {
    for (const char* name : names) unsetenv(name);
    for (const auto& [name, value] : variables) setenv(name, value, 1);
    const int ranks = launched_ranks();
    for (const char* name : names) unsetenv(name);
    return ranks;
  };
  CHECK(ranks_with({}) == 1);
  CHECK(ranks_with({{"OMPI_COMM_WORLD_SIZE", "3"}}) == 3);
  CHECK(ranks_with({{"OMPI_COMM_WORLD_SIZE", "1"}, {"PMIX_RANK", "0"}, {"SLURM_NTASKS", "8"}}) == 1);
  CHECK(ranks_with({{"PMI_SIZE", "2"}}) == 2);
  CHECK(ranks_with({{"SLURM_NTASKS", "8"}}) == 1);
  CHECK(ranks_with({{"PMIX_RANK", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_NUM_TASKS", "4"}}) == 4);
  CHECK(ranks_with({{"PMIX_RANK", "0"}, {"SLURM_NTASKS", "8"}}) == 8);
}
