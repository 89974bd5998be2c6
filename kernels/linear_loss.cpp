#include <greyhound/kernels/linear_loss.h>

#include <greyhound/kernels/backend.h>

namespace greyhound {

void copy_valid_rows(const Context& context, const CopyValidRows& args) {
  require_tensor(args.to, "copy_valid_rows: to", args.from.dtype, args.from.shape);
  const Shape& index = args.targets.index.shape;
  require((index.rank() == 1 || index.rank() == 2) && index[0] == args.from.rows(), "copy_valid_rows: targets ",
          to_string(index), " for ", args.from.rows(), " rows");
  require_device(context, args.from, "copy_valid_rows: from");
  require_device(context, args.to, "copy_valid_rows: to");
  run_on_device(
      context, [&] { cpu::copy_valid_rows(context, args); }, [&] { cuda::copy_valid_rows(context, args); });
}

void normalize_upstream(const Context& context, const NormalizeUpstream& args) {
  require_tensor(args.row_upstream, "row_upstream", DType::fp32, Shape{args.targets.index.elements()});
  require_tensor(args.alpha, "alpha", DType::fp32, Shape{1});
  require_device(context, args.alpha, "alpha");
  run_on_device(
      context, [&] { cpu::normalize_upstream(context, args); }, [&] { cuda::normalize_upstream(context, args); });
}

void normalize_grad_out(const Context& context, const NormalizeGradOut& args) {
  require_tensor(args.grad_out, "grad_out", args.grad_out.dtype, args.targets.index.shape);
  require_tensor(args.grad_scale, "grad_scale", DType::fp32, Shape{1});
  require_tensor(args.alpha, "alpha", DType::fp32, Shape{1});
  require_device(context, args.grad_out, "grad_out");
  require_device(context, args.alpha, "alpha");
  run_on_device(
      context, [&] { cpu::normalize_grad_out(context, args); }, [&] { cuda::normalize_grad_out(context, args); });
}

void tile_column_sum(const Context& context, const TileColumnSum& args) {
  require_tensor(args.out, "tile_column_sum: out", DType::fp32, Shape{args.tile.columns()});
  require_device(context, args.tile, "tile_column_sum: tile");
  require_device(context, args.out, "tile_column_sum: out");
  if (args.alpha_factor) require_tensor(args.alpha_factor, "tile_column_sum: alpha_factor", DType::fp32, Shape{1});
  require_device(context, args.alpha_factor, "tile_column_sum: alpha_factor");
  run_on_device(
      context,
      [&] {
        TileColumnSum sum = args;
        if (args.alpha_factor) sum.alpha *= *args.alpha_factor.as<float>();
        cpu::tile_column_sum(context, sum);
      },
      [&] { cuda::tile_column_sum(context, args); });
}

}  // namespace greyhound
