#include <greyhound/kernels/matmul.h>

#include <greyhound/kernels/backend.h>
#include <greyhound/kernels/matmul_choice.h>
#include <greyhound/kernels/matmul_choices.h>

namespace greyhound {

namespace {

void check(const Context& context, const Matmul& args) {
  const ConstTensor &a = args.a, &b = args.b, out = args.out, pre = args.pre_activation;
  const std::int64_t m = args.transpose_a ? a.columns() : a.rows(), k = args.transpose_a ? a.rows() : a.columns();
  const std::int64_t n = args.transpose_b ? b.rows() : b.columns(), bk = args.transpose_b ? b.columns() : b.rows();
  require(k == bk && out.rows() == m && out.columns() == n, "matmul: a ", to_string(a.shape),
          args.transpose_a ? " transposed" : "", " x b ", to_string(b.shape), args.transpose_b ? " transposed" : "",
          " does not give out ", to_string(out.shape));
  dispatch(a.dtype, "matmul: a", [](auto) {});
  require(b.dtype == a.dtype, "matmul: b: expected ", name_of(a.dtype), " as a has, got ", name_of(b.dtype));
  require(out.dtype == a.dtype || out.dtype == DType::fp32, "matmul: out: expected ", name_of(a.dtype),
          " or fp32, got ", name_of(out.dtype));
  require((a && b) || a.elements() == 0 || b.elements() == 0, "matmul: a or b not given");
  require(args.out || out.elements() == 0, "matmul: out not given");
  if (args.bias) {
    require(args.bias.dtype == a.dtype || args.bias.dtype == DType::fp32, "matmul: bias: expected ", name_of(a.dtype),
            " or fp32, got ", name_of(args.bias.dtype));
    require(args.bias.shape == Shape{n}, "matmul: bias: expected shape [", n, "], got ", to_string(args.bias.shape));
  }
  if (pre) {
    require(pre.dtype == out.dtype && pre.rows() == m && pre.columns() == n, "matmul: pre_activation: expected ",
            name_of(out.dtype), " [", m, ", ", n, "] as out is, got ", name_of(pre.dtype), " ", to_string(pre.shape));
  }
  if (args.alpha_factor) require_tensor(args.alpha_factor, "matmul: alpha_factor", DType::fp32, Shape{1});
  require_device(context, args.alpha_factor, "matmul: alpha_factor");
  require_device(context, a, "matmul: a");
  require_device(context, b, "matmul: b");
  require_device(context, out, "matmul: out");
  require_device(context, args.bias, "matmul: bias");
  require_device(context, pre, "matmul: pre_activation");
}

}  // namespace

void matmul(const Context& context, const Matmul& args, Workspace& workspace) {
  check(context, args);
  const std::int64_t k = args.transpose_a ? args.a.rows() : args.a.columns();
  run_on_device(
      context,
      [&] {
        Matmul product = args;
        if (args.alpha_factor) product.alpha *= *args.alpha_factor.as<float>();
        cpu::matmul(context, product, workspace);
      },
      [&] { cuda::matmul(context, args, workspace); },
      {"matmul", args.out.rows(), args.out.columns(), k, args.transpose_a, args.transpose_b});
}

void tune_matmul(const Context& context, const Matmul& args, Workspace& workspace) {
  check(context, args);
  run_on_device(
      context, [] {}, [&] { cuda::tune_matmul(context, args, workspace); });
}

std::size_t matmul_workspace_bytes(const Context& context, const Matmul& args) {
  std::size_t bytes = 0;
  run_on_device(
      context, [&] { bytes = cpu::matmul_workspace_bytes(context, args); },
      [&] { bytes = cuda::matmul_workspace_bytes(context, args); });
  return bytes;
}

std::string matmul_library(const Context& context) {
  std::string library;
  run_on_device(
      context, [&] { library = cpu::matmul_library(); }, [&] { library = cuda::matmul_library(); });
  return library;
}

}  // namespace greyhound
