#include <greyhound/kernels/scale.h>

namespace greyhound::cpu {

void scale(const Context& context, const Scale& args) {
  const float factor = *args.scalar.as<float>();
  if (factor == 1.0f) return;
  const std::int64_t rows = args.data.rows(), columns = args.data.columns();
  // Rows of a few elements and one row of many are both common: work is cut into pieces of a row.
  constexpr std::int64_t piece = 1 << 14;
  const std::int64_t pieces = (columns + piece - 1) / piece;
  dispatch(args.data.dtype, "scale: data", [&](auto tag) {
    using T = typename decltype(tag)::type;
#pragma omp parallel for num_threads(context.threads()) schedule(static)
    for (std::int64_t task = 0; task < rows * pieces; ++task) {
      T* row = args.data.row<T>(task / pieces);
      const std::int64_t begin = task % pieces * piece;
      const std::int64_t end = begin + piece < columns ? begin + piece : columns;
      for (std::int64_t j = begin; j < end; ++j) {
        row[j] = from_float<T>(factor == 0.0f ? 0.0f : to_float(row[j]) * factor);
      }
    }
  });
}

}  // namespace greyhound::cpu
