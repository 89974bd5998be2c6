// The same as two_ranks.cpp in GPU memory: the trainer's own ncclComm_t and its own stream for communication are
// wrapped. A GPU for each rank; the same losses for any number of ranks.
//   mpirun -np 2 ./two_ranks_cuda
#include <cuda_runtime_api.h>
#include <greyhound/core/comm/communicator.h>
#include <greyhound/loss/loss.h>
#include <greyhound/loss/ranks.h>

#include <mpi.h>
#include <nccl.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace loss = greyhound::loss;
using greyhound::Device;
using greyhound::DType;
using greyhound::Tensor;
using greyhound::tensor;

constexpr std::int64_t batch = 4096, width = 256, vocab = 5000;  // rows of a step over all ranks

void check(cudaError_t status) {
  if (status != cudaSuccess) greyhound::throw_runtime(cudaGetErrorString(status));
}
void check(ncclResult_t status) {
  if (status != ncclSuccess) greyhound::throw_runtime(ncclGetErrorString(status));
}

template <class T>
T* on_device(const std::vector<T>& host) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, host.size() * sizeof(T)));
  check(cudaMemcpy(memory, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return static_cast<T*>(memory);
}

std::vector<float> waves(std::int64_t count, float scale, float frequency, std::int64_t first = 0) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[i] = scale * std::sin(frequency * static_cast<float>(first + i));
  return values;
}

void train(int rank, int size) {
  const std::int64_t rows = batch / size, first_row = rows * rank;
  cudaStream_t compute, communication;
  check(cudaStreamCreate(&compute));
  check(cudaStreamCreateWithFlags(&communication, cudaStreamNonBlocking));
  ncclUniqueId id;
  if (rank == 0) check(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm_t nccl;
  check(ncclCommInitRank(&nccl, size, id, rank));

  int device = 0;
  check(cudaGetDevice(&device));
  const greyhound::Context context = greyhound::Context::cuda(device, compute);
  const Device gpu = context.device();
  {
    const auto communicator = greyhound::wrap_nccl(context, nccl, communication);
    std::vector<std::int32_t> host_targets(static_cast<std::size_t>(rows));
    std::int64_t valid = 0;
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t row = first_row + i;
      host_targets[i] = row % 7 == 3 || row < 999 ? -100 : static_cast<std::int32_t>(37 * row % vocab);
      valid += host_targets[i] >= 0 ? 1 : 0;
    }
    const auto matrix = [&](const std::vector<float>& values, std::int64_t columns) {
      const auto count = static_cast<std::int64_t>(values.size());
      return tensor(static_cast<void*>(on_device(values)), DType::fp32, {count / columns, columns}, 0, gpu);
    };
    loss::LinearInputs in;
    in.inputs = matrix(waves(rows * width, 1.0f, 0.7f, first_row * width), width);
    const Tensor weight = matrix(waves(vocab * width, 0.1f, 0.3f), width);
    in.weight = weight;
    in.targets = tensor(static_cast<void*>(on_device(host_targets)), DType::int32, {rows}, 0, gpu);
    loss::LinearGradients gradients;
    gradients.input = loss::overwrite(matrix(waves(rows * width, 0.0f, 0.0f), width));
    gradients.weight = loss::overwrite(matrix(waves(vocab * width, 0.0f, 0.0f), width));

    const loss::Plan plan = loss::plan_chunked_linear_loss(context, {rows, width, vocab, DType::fp32});
    void *scratch = nullptr, *storage = nullptr;
    check(cudaMalloc(&scratch, plan.workspace_bytes));
    check(cudaMalloc(&storage, loss::LossSums::bytes));
    greyhound::Workspace workspace(scratch, plan.workspace_bytes, gpu);
    loss::LossSums sums(context, storage);

    // 1. The denominator is that of all ranks, and known before any gradient is made.
    std::int64_t total = 0;
    MPI_Allreduce(&valid, &total, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    loss::CrossEntropyOptions options;
    options.denominator =
        tensor(static_cast<void*>(on_device(std::vector<float>{static_cast<float>(total)})), DType::fp32, {1}, 0, gpu);
    sums.reset(context);
    loss::chunked_linear_cross_entropy(context, plan, in, options, gradients, workspace, sums);

    // 2. The head's gradient travels on the communication stream; the rest of a backward pass, which would read
    //    gradients.input, goes to the compute stream here.
    communicator->start_all_reduce(context, gradients.weight.tensor);
    communicator->join(context);  // work that is enqueued from here on sees the sum

    // 3. The report is of all ranks.
    loss::all_reduce(context, *communicator, sums);
    const loss::Report report = sums.read(context);
    communicator->check();  // nothing has failed on the way
    std::vector<float> gradient(static_cast<std::size_t>(vocab * width));
    check(cudaMemcpy(gradient.data(), gradients.weight.tensor.data, gradient.size() * sizeof(float),
                     cudaMemcpyDeviceToHost));
    double norm = 0;
    for (const float value : gradient) norm += static_cast<double>(value) * value;
    if (rank == 0) {
      std::printf("loss %.5f over %lld tokens, norm of the head's gradient %.6f\n", report.mean_loss(),
                  static_cast<long long>(report.n_valid), std::sqrt(norm));
    }
  }
  check(ncclCommDestroy(nccl));
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int devices = greyhound::cuda_device_count();
  MPI_Comm host;  // the ranks of this host, which share its GPUs
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
  int local = 0;
  MPI_Comm_rank(host, &local);
  int missing = local >= devices ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &missing, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  try {
    if (missing) {
      if (rank == 0) std::printf("skipped: no CUDA device for each of %d ranks\n", size);
    } else {
      check(cudaSetDevice(local));
      train(rank, size);
    }
  } catch (const greyhound::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, error.exit_code());
  }
  MPI_Finalize();
}
