#include <greyhound/kernels/scale.h>

#include <greyhound/kernels/backend.h>

namespace greyhound {

void scale(const Context& context, const Scale& args) {
  require(args.scalar && args.scalar.dtype == DType::fp32 && args.scalar.elements() == 1,
          "scale: scalar: expected one fp32 number, got ", name_of(args.scalar.dtype), " ",
          to_string(args.scalar.shape));
  require_device(context, args.data, "scale: data");
  require_device(context, args.scalar, "scale: scalar");
  if (args.data.elements() == 0) return;
  run_on_device(
      context, [&] { cpu::scale(context, args); }, [&] { cuda::scale(context, args); });
}

}  // namespace greyhound
