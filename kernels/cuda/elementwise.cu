// Formulas: kernels/elementwise.h. The element-wise loops are in elementwise.cuh; cast has a file of its own, and so
// have the operators that sum over rows, gelu_backward among them.
#include <greyhound/kernels/elementwise.h>

#include <greyhound/core/cuda/device_scope.h>
#include <greyhound/kernels/cuda/rows.h>
#include <greyhound/kernels/cuda/dropout.cuh>
#include <greyhound/kernels/cuda/elementwise.cuh>
#include <greyhound/kernels/cuda/gelu.cuh>

namespace greyhound::cuda {

namespace {

struct Cap {
  static constexpr bool needs_rows = false;
  float cap;
  template <int size>
  __device__ void operator()(std::int64_t, int, const float (&in)[1][size], float (&out)[size]) const {
#pragma unroll
    for (int i = 0; i < size; ++i) out[i] = isinf(in[0][i]) ? in[0][i] : cap * tanhf(in[0][i] / cap);
  }
};

struct Add {
  static constexpr bool needs_rows = false;
  template <int size>
  __device__ void operator()(std::int64_t, int, const float (&in)[2][size], float (&out)[size]) const {
#pragma unroll
    for (int i = 0; i < size; ++i) out[i] = in[0][i] + in[1][i];
  }
};

struct AddDropped {
  static constexpr bool needs_rows = true;
  DropoutMask mask;
  template <int size>
  __device__ void operator()(std::int64_t row, int first, const float (&in)[2][size], float (&out)[size]) const {
    mask.apply(row, first, in[1], out);
#pragma unroll
    for (int i = 0; i < size; ++i) out[i] += in[0][i];
  }
};

struct Drop {
  static constexpr bool needs_rows = true;
  DropoutMask mask;
  template <int size>
  __device__ void operator()(std::int64_t row, int first, const float (&in)[1][size], float (&out)[size]) const {
    mask.apply(row, first, in[0], out);
  }
};

}  // namespace

void gelu_forward(const Context& context, const GeluForward& args) {
  dispatch_fp32_bf16(args.input.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_elementwise<T>(context, "gelu_forward", {args.input}, args.out, Gelu{});
  });
}

void softcap(const Context& context, const Softcap& args) {
  dispatch_fp32_bf16(args.input.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_elementwise<T>(context, "softcap", {args.input}, args.out, Cap{args.cap});
  });
}

void residual_forward(const Context& context, const ResidualForward& args) {
  dispatch_fp32_bf16(args.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (args.dropout.probability > 0) {
      const AddDropped add{dropout_mask(args.dropout)};
      launch_elementwise<T>(context, "residual_forward", {args.residual, args.branch}, args.out, add);
    } else {
      launch_elementwise<T>(context, "residual_forward", {args.residual, args.branch}, args.out, Add{});
    }
  });
}

void dropout_apply(const Context& context, const DropoutApply& args) {
  if (args.dropout.probability == 0) {
    if (args.out.data != args.input.data) cuda::cast(context, {args.input, args.out});
    return;
  }
  dispatch_fp32_bf16(args.input.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch_elementwise<T>(context, "dropout_apply", {args.input}, args.out, Drop{dropout_mask(args.dropout)});
  });
}

}  // namespace greyhound::cuda
