#include <greyhound/kernels/linear_loss.h>

#include <greyhound/kernels/cpu/class_indices.h>
#include <greyhound/kernels/cpu/row_values.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace greyhound::cpu {

void copy_valid_rows(const Context& context, const CopyValidRows& args) {
  const ClassIndices indices(args.targets.index, args.targets.vocab, args.targets.ignore_index);
  const std::int64_t rows = args.from.rows();
  const std::size_t element = size_of(args.from.dtype);
  const std::size_t row_bytes = static_cast<std::size_t>(args.from.columns()) * element;
  const char* from = static_cast<const char*>(args.from.data);
  char* to = static_cast<char*>(args.to.data);
#pragma omp parallel for num_threads(context.threads()) schedule(static)
  for (std::int64_t row = 0; row < rows; ++row) {
    char* out = to + static_cast<std::size_t>(row * args.to.row_stride) * element;
    if (indices.any_valid(row)) {
      std::memcpy(out, from + static_cast<std::size_t>(row * args.from.row_stride) * element, row_bytes);
    } else {
      std::memset(out, 0, row_bytes);
    }
  }
}

void normalize_upstream(const Context&, const NormalizeUpstream& args) {
  const Targets& targets = args.targets;
  const std::int64_t rows = targets.index.elements();
  double largest = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t target = target_at(targets.index, row);
    if (!is_valid(targets, target)) continue;
    const double factor = static_cast<double>(row_value_at(args.upstream, row)) *
                          weight_at(args.class_weights, args.row_weights, row, target);
    largest = std::max(largest, std::fabs(factor));
  }
  const double denominator = value_at(args.denominator, 0);
  const bool zero = largest == 0 || denominator == 0;
  const double scale = largest * args.logit_scale / fp16_tile_scale;
  float* row_upstream = static_cast<float*>(args.row_upstream.data);
  for (std::int64_t row = 0; row < rows; ++row) {
    row_upstream[row] = zero ? 0.0f : static_cast<float>(row_value_at(args.upstream, row) / scale);
  }
  *static_cast<float*>(args.alpha.data) = zero ? 0.0f : static_cast<float>(scale / denominator);
}

void normalize_grad_out(const Context&, const NormalizeGradOut& args) {
  const ClassIndices indices(args.targets.index, args.targets.vocab, args.targets.ignore_index);
  double largest = 0;
  dispatch(args.grad_out.dtype, "normalize_grad_out: grad_out", [&](auto tag) {
    using G = typename decltype(tag)::type;
    for (std::int64_t row = 0; row < args.grad_out.shape[0]; ++row) {
      double sum = 0;
      for (std::int64_t k = 0; k < indices.per_row; ++k) {
        if (indices.valid(indices.at(row, k))) sum += std::fabs(value_beside<G>(args.grad_out, row, k));
      }
      largest = std::max(largest, sum);
    }
  });
  const double scale = largest * args.logit_scale / fp16_tile_scale;
  *static_cast<float*>(args.grad_scale.data) = largest == 0 ? 0.0f : static_cast<float>(1 / scale);
  *static_cast<float*>(args.alpha.data) = static_cast<float>(scale);
}

void tile_column_sum(const Context& context, const TileColumnSum& args) {
  // Each thread owns whole panels of columns and adds up their rows in order.
  constexpr std::int64_t panel = 64;
  const std::int64_t rows = args.tile.rows(), columns = args.tile.columns();
  const std::int64_t panels = (columns + panel - 1) / panel;
  float* out = static_cast<float*>(args.out.data);
  dispatch(args.tile.dtype, "tile_column_sum: tile", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* tile = static_cast<const T*>(args.tile.data);
#pragma omp parallel for num_threads(context.threads()) schedule(static)
    for (std::int64_t p = 0; p < panels; ++p) {
      const std::int64_t begin = p * panel;
      const int count = static_cast<int>(std::min(panel, columns - begin));
      double sums[panel] = {};
      for (std::int64_t row = 0; row < rows; ++row) {
        const T* from = tile + row * args.tile.row_stride + begin;
        for (int j = 0; j < count; ++j) sums[j] += to_float(from[j]);
      }
      for (int j = 0; j < count; ++j) {
        const double before = args.accumulate ? out[begin + j] : 0.0;
        out[begin + j] = static_cast<float>(before + args.alpha * sums[j]);
      }
    }
  });
}

}  // namespace greyhound::cpu
