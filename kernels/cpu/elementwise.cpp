#include <greyhound/kernels/cpu/gelu.h>
#include <greyhound/kernels/cpu/rows.h>
#include <greyhound/kernels/elementwise.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace greyhound::cpu {

namespace {

// Rows of a loop over tensors of one shape: a single long row when all of them are dense.
struct Extent {
  std::int64_t rows, columns;
};
template <class... Tensors>
Extent flattened(const ConstTensor& first, const Tensors&... others) {
  if (first.contiguous() && (others.contiguous() && ...)) return {1, first.elements()};
  return {first.rows(), first.columns()};
}

// Multiplies by 1 / (1 - probability) what dropout keeps and makes the rest 0, whatever it was.
class Mask {
 public:
  // Draws for `count` columns from `first` (a multiple of 4) on.
  Mask(const Dropout& dropout, std::int64_t row, std::int64_t first, std::int64_t count)
      : probability_(dropout.probability), scale_(1.0f / (1.0f - dropout.probability)) {
    const DropoutOrigin origin = mask_origin(dropout.origin, dropout.key, dropout.first_row);
    const Philox philox{origin.key};
    const std::uint64_t high = origin.first_row + static_cast<std::uint64_t>(row);
    const std::int64_t groups = ceil_div(count, 4);
    for (std::int64_t group = 0; group < groups; ++group) {
      const Philox::Block words = philox(static_cast<std::uint64_t>(first / 4 + group), high);
      std::copy(words.begin(), words.end(), words_ + 4 * group);
    }
  }
  float operator()(std::int64_t j, float value) const {
    return uniform(words_[j]) >= probability_ ? value * scale_ : 0.0f;
  }

 private:
  std::uint32_t words_[block_columns];
  float probability_, scale_;
};

}  // namespace

void gelu_forward(const Context& context, const GeluForward& args) {
  dispatch_fp32_bf16(args.input.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Extent extent = flattened(args.input, args.out);
    for_each_block(context, extent.rows, extent.columns, [&](std::int64_t row, std::int64_t first, std::int64_t count) {
      const T* input = args.input.row<T>(row) + first;
      T* out = args.out.row<T>(row) + first;
#pragma omp simd
      for (std::int64_t j = 0; j < count; ++j) out[j] = from_float<T>(gelu(to_float(input[j])));
    });
  });
}

void gelu_backward(const Context& context, const GeluBackward& args, Workspace& workspace) {
  dispatch_fp32_bf16(args.input.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Extent extent = flattened(args.input, args.grad_out, args.grad_input);
    for_each_block(context, extent.rows, extent.columns, [&](std::int64_t row, std::int64_t first, std::int64_t count) {
      const T* input = args.input.row<T>(row) + first;
      const T* grad_out = args.grad_out.row<T>(row) + first;
      T* grad_input = args.grad_input.row<T>(row) + first;
#pragma omp simd
      for (std::int64_t j = 0; j < count; ++j) {
        grad_input[j] = from_float<T>(to_float(grad_out[j]) * gelu_slope(to_float(input[j])));
      }
    });
  });
  if (args.grad_bias) cpu::column_sum(context, {args.grad_input, args.grad_bias, args.accumulate_bias}, workspace);
}

void softcap(const Context& context, const Softcap& args) {
  dispatch_fp32_bf16(args.input.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Extent extent = flattened(args.input, args.out);
    for_each_block(context, extent.rows, extent.columns, [&](std::int64_t row, std::int64_t first, std::int64_t count) {
      const T* input = args.input.row<T>(row) + first;
      T* out = args.out.row<T>(row) + first;
#pragma omp simd
      for (std::int64_t j = 0; j < count; ++j) {
        const float x = to_float(input[j]);
        const float capped = args.cap * vec::tanh(x / args.cap);
        out[j] = from_float<T>(std::fabs(x) == std::numeric_limits<float>::infinity() ? x : capped);
      }
    });
  });
}

void residual_forward(const Context& context, const ResidualForward& args) {
  dispatch_fp32_bf16(args.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool drops = args.dropout.probability > 0;
    // Dropout needs to know the row; plain addition does not.
    const Extent extent =
        drops ? Extent{args.out.rows(), args.out.columns()} : flattened(args.out, args.residual, args.branch);
    for_each_block(context, extent.rows, extent.columns, [&](std::int64_t row, std::int64_t first, std::int64_t count) {
      const T* residual = args.residual.row<T>(row) + first;
      const T* branch = args.branch.row<T>(row) + first;
      T* out = args.out.row<T>(row) + first;
      if (drops) {
        const Mask mask(args.dropout, row, first, count);
#pragma omp simd
        for (std::int64_t j = 0; j < count; ++j) {
          out[j] = from_float<T>(to_float(residual[j]) + mask(j, to_float(branch[j])));
        }
      } else {
#pragma omp simd
        for (std::int64_t j = 0; j < count; ++j) out[j] = from_float<T>(to_float(residual[j]) + to_float(branch[j]));
      }
    });
  });
}

void dropout_apply(const Context& context, const DropoutApply& args) {
  if (args.dropout.probability == 0) {
    if (args.out.data != args.input.data) cpu::cast(context, {args.input, args.out});
    return;
  }
  dispatch_fp32_bf16(args.input.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_each_block(context, args.input.rows(), args.input.columns(),
                   [&](std::int64_t row, std::int64_t first, std::int64_t count) {
                     const T* input = args.input.row<T>(row) + first;
                     T* out = args.out.row<T>(row) + first;
                     const Mask mask(args.dropout, row, first, count);
#pragma omp simd
                     for (std::int64_t j = 0; j < count; ++j) out[j] = from_float<T>(mask(j, to_float(input[j])));
                   });
  });
}

std::size_t column_sum_workspace_bytes(const Context&, std::int64_t rows, std::int64_t columns) {
  return Workspace::size(DType::fp64, {RowBlocks(rows).count, columns});
}

void column_sum(const Context& context, const ColumnSum& args, Workspace& workspace) {
  const std::int64_t columns = args.input.columns(), tasks_per_block = ceil_div(columns, sum_columns);
  const RowBlocks blocks(args.input.rows());
  const Workspace::Scope scope(workspace);
  double* partials = workspace.take(DType::fp64, {blocks.count, columns}).as<double>();
  dispatch_fp32_bf16(args.input.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t tasks = blocks.count * tasks_per_block;
#pragma omp parallel for num_threads(context.threads()) schedule(static) if (args.input.elements() >= parallel_elements)
    for (std::int64_t task = 0; task < tasks; ++task) {
      const std::int64_t block = task / tasks_per_block, first = task % tasks_per_block * sum_columns;
      const std::int64_t count = std::min(sum_columns, columns - first);
      double sums[sum_columns] = {};
      for (std::int64_t row = blocks.begin(block); row < blocks.end(block); ++row) {
        const T* input = args.input.row<T>(row) + first;
        for (std::int64_t j = 0; j < count; ++j) sums[j] += to_float(input[j]);
      }
      std::copy(sums, sums + count, partials + block * columns + first);
    }
  });
  add_partials(context, partials, blocks.count, columns, columns, args.out.as<float>(), args.accumulate);
}

void cast(const Context& context, const Cast& args) {
  const Extent extent = flattened(args.from, args.to);
  dispatch(args.from.dtype, "cast: from", [&](auto from_tag) {
    using From = typename decltype(from_tag)::type;
    dispatch(args.to.dtype, "cast: to", [&](auto to_tag) {
      using To = typename decltype(to_tag)::type;
      for_each_block(context, extent.rows, extent.columns,
                     [&](std::int64_t row, std::int64_t first, std::int64_t count) {
                       const From* from = args.from.row<From>(row) + first;
                       To* to = args.to.row<To>(row) + first;
                       if constexpr (std::is_same_v<From, To>) {
                         std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(To));
                       } else {
#pragma omp simd
                         for (std::int64_t j = 0; j < count; ++j) to[j] = from_float<To>(to_float(from[j]));
                       }
                     });
    });
  });
}

}  // namespace greyhound::cpu
