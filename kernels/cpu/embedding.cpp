#include <greyhound/kernels/embedding.h>

#include <greyhound/kernels/cpu/rows.h>

#include <utility>

namespace greyhound::cpu {

namespace {

bool valid(std::int32_t token, std::int64_t vocab) { return token >= 0 && token < vocab; }

void record_bad_tokens(const std::int32_t* tokens, std::int64_t rows, std::int64_t vocab, ErrorWord* errors) {
  for (std::int64_t row = 0; row < rows; ++row) {
    if (valid(tokens[row], vocab)) continue;
    if (errors->count == 0) {
      errors->first_row = row;
      errors->value = tokens[row];
    }
    ++errors->count;
  }
}

constexpr int digit_bits = 11;
constexpr std::int64_t digits = std::int64_t{1} << digit_bits;

// The rows with a valid token, ordered by token and within a token by row: a stable radix sort, whose cost depends on
// the number of rows and not on the vocabulary's size. `order` and `other` hold `rows` each; the result stands in one
// of them and `count` is its length.
const std::int64_t* rows_by_token(const std::int32_t* tokens, std::int64_t rows, std::int64_t vocab,
                                  std::int64_t* order, std::int64_t* other, std::int64_t* count) {
  std::int64_t n = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    if (valid(tokens[row], vocab)) order[n++] = row;
  }
  for (int shift = 0; shift < 31 && (vocab - 1) >> shift > 0; shift += digit_bits) {
    const auto digit = [&](std::int64_t row) { return (tokens[row] >> shift) & (digits - 1); };
    std::int64_t starts[digits + 1] = {};
    for (std::int64_t i = 0; i < n; ++i) ++starts[digit(order[i]) + 1];
    for (std::int64_t d = 0; d < digits; ++d) starts[d + 1] += starts[d];
    for (std::int64_t i = 0; i < n; ++i) other[starts[digit(order[i])]++] = order[i];
    std::swap(order, other);
  }
  *count = n;
  return order;
}

// out[first .. first + count) (+)= the sum of grad_out's rows row_of(0), ..., row_of(n - 1), in that order.
template <class T, class RowOf>
void sum_rows_into(const ConstTensor& grad_out, std::int64_t n, RowOf&& row_of, std::int64_t first, std::int64_t count,
                   bool accumulate, float* out) {
  double sums[sum_columns] = {};
  for (std::int64_t i = 0; i < n; ++i) {
    const T* grad = grad_out.row<T>(row_of(i)) + first;
    for (std::int64_t j = 0; j < count; ++j) sums[j] += to_float(grad[j]);
  }
  for (std::int64_t j = 0; j < count; ++j) {
    out[first + j] = static_cast<float>(accumulate ? out[first + j] + sums[j] : sums[j]);
  }
}

void zero_rows(const Context& context, const Tensor& tensor, std::int64_t first_row) {
  const std::int64_t columns = tensor.columns();
  for_each_block(context, tensor.rows() - first_row, columns,
                 [&](std::int64_t row, std::int64_t first, std::int64_t n) {
                   std::fill_n(tensor.row<float>(first_row + row) + first, n, 0.0f);
                 });
}

}  // namespace

void embedding_forward(const Context& context, const EmbeddingForward& args) {
  const std::int64_t rows = args.tokens.elements(), positions = args.tokens.columns();
  const std::int32_t* tokens = args.tokens.as<std::int32_t>();
  if (args.errors != nullptr) record_bad_tokens(tokens, rows, args.vocab, args.errors);
  dispatch_fp32_bf16(args.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_each_block(context, rows, args.out.columns(), [&](std::int64_t row, std::int64_t first, std::int64_t count) {
      T* out = args.out.row<T>(row) + first;
      const T* token = valid(tokens[row], args.vocab) ? args.token_weight.row<T>(tokens[row]) + first : nullptr;
      const T* position =
          args.position_weight ? args.position_weight.row<T>(args.first_position + row % positions) + first : nullptr;
      if (token != nullptr && position != nullptr) {
#pragma omp simd
        for (std::int64_t j = 0; j < count; ++j) out[j] = from_float<T>(to_float(token[j]) + to_float(position[j]));
      } else if (token != nullptr || position != nullptr) {
        std::copy_n(token != nullptr ? token : position, count, out);
      } else {
        std::fill_n(out, count, from_float<T>(0.0f));
      }
    });
  });
}

std::size_t embedding_backward_workspace_bytes(const Context&, std::int64_t rows, std::int64_t, std::int64_t) {
  return 2 * Workspace::size(DType::int64, {rows}) + Workspace::size(DType::int64, {rows + 1});
}

void embedding_backward(const Context& context, const EmbeddingBackward& args, Workspace& workspace) {
  const std::int64_t rows = args.tokens.elements(), positions = args.tokens.columns();
  const std::int64_t columns = args.grad_token.columns(), pieces = ceil_div(columns, sum_columns);
  const std::int32_t* tokens = args.tokens.as<std::int32_t>();
  if (!args.accumulate_token) zero_rows(context, args.grad_token, 0);
  if (args.grad_position && !args.accumulate_position) zero_rows(context, args.grad_position, positions);

  const Workspace::Scope scope(workspace);
  std::int64_t* first_half = workspace.take(DType::int64, {rows}).as<std::int64_t>();
  std::int64_t* second_half = workspace.take(DType::int64, {rows}).as<std::int64_t>();
  std::int64_t* starts = workspace.take(DType::int64, {rows + 1}).as<std::int64_t>();
  std::int64_t sorted_rows = 0, groups = 0;
  const std::int64_t* order = rows_by_token(tokens, rows, args.vocab, first_half, second_half, &sorted_rows);
  for (std::int64_t i = 0; i < sorted_rows; ++i) {
    if (i == 0 || tokens[order[i]] != tokens[order[i - 1]]) starts[groups++] = i;
  }
  starts[groups] = sorted_rows;

  dispatch_fp32_bf16(args.grad_out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    // A frequent token is still shared out: a task is a token and a piece of the columns.
    const bool parallel = rows * columns >= parallel_elements;
#pragma omp parallel for num_threads(context.threads()) schedule(dynamic, 4) if (parallel)
    for (std::int64_t task = 0; task < groups * pieces; ++task) {
      const std::int64_t group = task / pieces, first = task % pieces * sum_columns;
      const std::int64_t* group_rows = order + starts[group];
      sum_rows_into<T>(
          args.grad_out, starts[group + 1] - starts[group], [&](std::int64_t i) { return group_rows[i]; }, first,
          std::min(sum_columns, columns - first), args.accumulate_token,
          args.grad_token.row<float>(tokens[*group_rows]));
    }
    if (!args.grad_position) return;
    const std::int64_t batch = positions == 0 ? 0 : rows / positions;
#pragma omp parallel for num_threads(context.threads()) schedule(static) if (parallel)
    for (std::int64_t task = 0; task < positions * pieces; ++task) {
      const std::int64_t position = task / pieces, first = task % pieces * sum_columns;
      sum_rows_into<T>(
          args.grad_out, batch, [&](std::int64_t b) { return b * positions + position; }, first,
          std::min(sum_columns, columns - first), args.accumulate_position, args.grad_position.row<float>(position));
    }
  });
}

}  // namespace greyhound::cpu
