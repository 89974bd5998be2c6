// A data-parallel trainer with an MPI communicator of its own, and Greyhound's loss over its ranks: one denominator for
// all of them before the gradients, the head's gradient on its way while the rest of the backward pass computes, one
// loss for the report. Prints the same losses for any number of ranks:
//   ./two_ranks
//   mpirun -np 2 ./two_ranks
#include <greyhound/core/comm/communicator.h>
#include <greyhound/loss/loss.h>
#include <greyhound/loss/ranks.h>

#include <mpi.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace loss = greyhound::loss;
using greyhound::DType;
using greyhound::tensor;

// The model: hidden = features x trunk^T, logits = hidden x head^T.
constexpr std::int64_t batch = 48, width = 16, vocab = 50;  // rows of a step over all ranks

void train(MPI_Comm ranks) {
  // An importer's communicator is known by its Fortran handle, which has one type in every MPI.
  const auto communicator = greyhound::wrap_mpi(static_cast<int>(MPI_Comm_c2f(ranks)));
  const std::int64_t rows = batch / communicator->size(), first_row = rows * communicator->rank();

  std::vector<float> trunk(width * width), head(vocab * width), grad_trunk(trunk.size()), grad_head(head.size());
  for (std::size_t i = 0; i < trunk.size(); ++i) trunk[i] = 0.4f * std::sin(0.9f * static_cast<float>(i));
  for (std::size_t i = 0; i < head.size(); ++i) head[i] = 0.3f * std::cos(0.3f * static_cast<float>(i));
  std::vector<float> features(rows * width), hidden(features.size()), grad_hidden(features.size());
  std::vector<std::int32_t> targets(rows);
  std::int64_t valid = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t row = first_row + i;
    for (std::int64_t c = 0; c < width; ++c) features[i * width + c] = std::sin(0.7f * static_cast<float>(row + 5 * c));
    targets[i] = row % 7 == 3 || row < 9 ? -100 : static_cast<std::int32_t>(37 * row % vocab);  // more on rank 0
    valid += targets[i] >= 0 ? 1 : 0;
  }

  const greyhound::Context context = greyhound::Context::cpu();
  const loss::Plan plan = loss::plan_chunked_linear_loss(context, {rows, width, vocab, DType::fp32});
  void* scratch = std::aligned_alloc(plan.workspace_alignment, plan.workspace_bytes);
  greyhound::Workspace workspace(scratch, plan.workspace_bytes, context.device());
  alignas(loss::LossSums::alignment) unsigned char storage[loss::LossSums::bytes];
  loss::LossSums sums(context, storage);

  loss::LinearInputs in;
  in.inputs = tensor(hidden.data(), DType::fp32, {rows, width});
  in.weight = tensor(head.data(), DType::fp32, {vocab, width});
  in.targets = tensor(targets.data(), DType::int32, {rows});
  loss::LinearGradients gradients;
  gradients.input = loss::overwrite(tensor(grad_hidden.data(), DType::fp32, {rows, width}));
  gradients.weight = loss::overwrite(tensor(grad_head.data(), DType::fp32, {vocab, width}));

  for (int step = 1; step <= 5; ++step) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t c = 0; c < width; ++c) {
        float sum = 0;
        for (std::int64_t k = 0; k < width; ++k) sum += features[i * width + k] * trunk[c * width + k];
        hidden[i * width + c] = sum;
      }
    }
    // 1. The denominator is that of all ranks, and known before any gradient is made.
    float denominator = static_cast<float>(loss::all_reduce_count(*communicator, valid));
    loss::CrossEntropyOptions options;
    options.denominator = tensor(&denominator, DType::fp32, {1});
    sums.reset(context);
    loss::chunked_linear_cross_entropy(context, plan, in, options, gradients, workspace, sums);

    // 2. Ranks add their gradients. The head's is complete: it travels while the trunk's is computed.
    communicator->start_all_reduce(context, gradients.weight.tensor);
    for (std::int64_t c = 0; c < width; ++c) {
      for (std::int64_t k = 0; k < width; ++k) {
        float sum = 0;
        for (std::int64_t i = 0; i < rows; ++i) sum += grad_hidden[i * width + c] * features[i * width + k];
        grad_trunk[c * width + k] = sum;
      }
    }
    communicator->start_all_reduce(context, tensor(grad_trunk.data(), DType::fp32, {width, width}));
    communicator->join(context);

    // 3. The report is of all ranks.
    loss::all_reduce(context, *communicator, sums);
    const loss::Report report = sums.read(context);
    if (communicator->is_root()) {
      std::printf("step %d: loss %.5f over %lld tokens\n", step, report.mean_loss(),
                  static_cast<long long>(report.n_valid));
    }
    for (std::size_t i = 0; i < trunk.size(); ++i) trunk[i] -= grad_trunk[i];
    for (std::size_t i = 0; i < head.size(); ++i) head[i] -= grad_head[i];
  }
  std::free(scratch);
}

int main(int argc, char** argv) {
  // Gradients travel beside the computation where several threads may call MPI; elsewhere they take their turn.
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  try {
    train(MPI_COMM_WORLD);
  } catch (const greyhound::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, error.exit_code());
  }
  MPI_Finalize();
}
