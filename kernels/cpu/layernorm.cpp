#include <greyhound/kernels/layernorm.h>

#include <greyhound/kernels/cpu/rows.h>

#include <cmath>

namespace greyhound::cpu {

namespace {

// Mean and variance in two passes. The first gives `center`, the mean as well as one fp32 sum can tell; the second
// works on differences from it, which are exact where a large common offset makes them small, and returns their own
// mean `delta`. The true mean is center + delta, kept in two parts because their sum rounds the offset's way.
struct RowStatistics {
  float center, delta, variance;
};

template <class T>
float row_mean(const T* row, std::int64_t columns, float center) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t j = 0; j < columns; ++j) sum += to_float(row[j]) - center;
  return sum / static_cast<float>(columns);
}

template <class T>
RowStatistics row_statistics(const T* row, std::int64_t columns) {
  const float center = row_mean(row, columns, 0.0f);
  float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum, squares)
  for (std::int64_t j = 0; j < columns; ++j) {
    const float difference = to_float(row[j]) - center;
    sum += difference;
    squares += difference * difference;
  }
  const float delta = sum / static_cast<float>(columns);
  const float variance = squares / static_cast<float>(columns) - delta * delta;
  return {center, delta, variance < 0.0f ? 0.0f : variance};  // NaN stays NaN
}

// One row of backward, with xhat = (x - mean) rstd and g = grad_out weight:
// grad_input (+)= rstd (g - mean(g) - xhat mean(g xhat)); the row's terms of grad_weight and grad_bias are added to
// the block's fp64 sums. grad_input may be grad_out: each element is read before it is written.
template <class T>
void backward_row(const T* grad_out, const T* input, const T* weight, float mean, float rstd, std::int64_t columns,
                  bool accumulate, T* grad_input, double* weight_sums, double* bias_sums) {
  // The stored mean is rounded to fp32; what the rounding took away comes back in delta.
  const float delta = row_mean(input, columns, mean);
  float sum_g = 0, sum_g_xhat = 0;
#pragma omp simd reduction(+ : sum_g, sum_g_xhat)
  for (std::int64_t j = 0; j < columns; ++j) {
    const float g = to_float(grad_out[j]) * to_float(weight[j]);
    sum_g += g;
    sum_g_xhat += g * ((to_float(input[j]) - mean - delta) * rstd);
  }
  const float mean_g = sum_g / static_cast<float>(columns), mean_g_xhat = sum_g_xhat / static_cast<float>(columns);
#pragma omp simd
  for (std::int64_t j = 0; j < columns; ++j) {
    const float grad = to_float(grad_out[j]);
    const float xhat = (to_float(input[j]) - mean - delta) * rstd;
    weight_sums[j] += grad * xhat;
    bias_sums[j] += grad;
    const float value = rstd * (grad * to_float(weight[j]) - mean_g - xhat * mean_g_xhat);
    grad_input[j] = from_float<T>(accumulate ? to_float(grad_input[j]) + value : value);
  }
}

}  // namespace

void layernorm_forward(const Context& context, const LayerNormForward& args) {
  const std::int64_t rows = args.input.rows(), columns = args.input.columns();
  dispatch_fp32_bf16(args.input.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* weight = args.weight.as<T>();
    const T* bias = args.bias ? args.bias.as<T>() : nullptr;
    float* mean = args.mean ? args.mean.as<float>() : nullptr;
    float* rstd = args.rstd ? args.rstd.as<float>() : nullptr;
#pragma omp parallel for num_threads(context.threads()) schedule(static) if (rows * columns >= parallel_elements)
    for (std::int64_t row = 0; row < rows; ++row) {
      const T* input = args.input.row<T>(row);
      T* out = args.out.row<T>(row);
      const RowStatistics statistics = row_statistics(input, columns);
      const float center = statistics.center, delta = statistics.delta;
      const float scale = 1.0f / std::sqrt(statistics.variance + args.eps);
      if (mean != nullptr) {
        mean[row] = center + delta;
        rstd[row] = scale;
      }
#pragma omp simd
      for (std::int64_t j = 0; j < columns; ++j) {
        const float xhat = (to_float(input[j]) - center - delta) * scale;
        out[j] = from_float<T>(xhat * to_float(weight[j]) + (bias != nullptr ? to_float(bias[j]) : 0.0f));
      }
    }
  });
}

void residual_layernorm(const Context& context, const ResidualLayerNorm& args) {
  cpu::residual_forward(context, {args.residual, args.branch, args.sum, args.dropout});
  cpu::layernorm_forward(context, {args.sum, args.weight, args.bias, args.out, args.mean, args.rstd, args.eps});
}

std::size_t layernorm_backward_workspace_bytes(const Context&, std::int64_t rows, std::int64_t channels) {
  return Workspace::size(DType::fp64, {RowBlocks(rows).count, 2, channels});
}

namespace {

void rows_backward(const Context& context, const LayerNormBackward& args, Workspace& workspace) {
  const std::int64_t rows = args.input.rows(), columns = args.input.columns();
  const RowBlocks blocks(rows);
  const Workspace::Scope scope(workspace);
  // Per block of rows: the sums of grad_weight, then those of grad_bias.
  double* partials = workspace.take(DType::fp64, {blocks.count, 2, columns}).as<double>();
  dispatch_fp32_bf16(args.input.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* weight = args.weight.as<T>();
    const float* mean = args.mean.as<float>();
    const float* rstd = args.rstd.as<float>();
#pragma omp parallel for num_threads(context.threads()) schedule(static) if (rows * columns >= parallel_elements)
    for (std::int64_t block = 0; block < blocks.count; ++block) {
      double* weight_sums = partials + block * 2 * columns;
      double* bias_sums = weight_sums + columns;
      std::fill(weight_sums, weight_sums + 2 * columns, 0.0);
      for (std::int64_t row = blocks.begin(block); row < blocks.end(block); ++row) {
        backward_row(args.grad_out.row<T>(row), args.input.row<T>(row), weight, mean[row], rstd[row], columns,
                     args.accumulate_input, args.grad_input.row<T>(row), weight_sums, bias_sums);
      }
    }
  });
  add_partials(context, partials, blocks.count, 2 * columns, columns, args.grad_weight.as<float>(),
               args.accumulate_weight);
  if (args.grad_bias) {
    add_partials(context, partials + columns, blocks.count, 2 * columns, columns, args.grad_bias.as<float>(),
                 args.accumulate_weight);
  }
}

}  // namespace

void layernorm_backward(const Context& context, const LayerNormBackward& args, Workspace& workspace) {
  rows_backward(context, args, workspace);
  if (!args.grad_input_sums) return;
  cpu::column_sum(context, {args.grad_input, args.grad_input_sums, args.accumulate_weight}, workspace);
}

}  // namespace greyhound::cpu
