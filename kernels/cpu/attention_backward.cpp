// Gradients of attention, with the weights recomputed tile by tile. With P = exp(S - lse) and D = sum_d grad_out * out:
//   grad_v = (P * factor)^T grad_out;   dS = P * (factor * (grad_out v^T) - D);   grad_q = scale * dS k;
//   grad_k = dS^T (scale * q)
// as in algorithm 4 of the FlashAttention paper. Every sum is the work of one task, in a fixed order.
#include <greyhound/kernels/attention.h>

#include <greyhound/kernels/cpu/attention_tiles.h>
#include <greyhound/kernels/cpu/vector_math.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include <cmath>

namespace greyhound::cpu {

namespace {

struct BackwardTiles {
  BackwardTiles(const HeadShape& shape, std::int64_t held_tokens, ScratchParts parts)
      : queries(parts.take(query_tile * shape.padded_size())),
        queries_transposed(parts.take(query_tile * shape.size())),
        grad_out(parts.take(query_tile * shape.padded_size())),
        grad_out_transposed(parts.take(query_tile * shape.size())),
        keys(parts.take(key_tile * shape.padded_size())),
        values(parts.take(key_tile * shape.padded_size())),
        weights(parts.take(key_tile * query_tile)),
        grad_weights(parts.take(key_tile * query_tile)),
        factors(parts.take(key_tile * query_tile)),
        grad_queries(parts.take(query_tile * shape.padded_size())),
        grad_keys(parts.take(tiles_of(held_tokens, key_tile) * key_tile * shape.padded_size())),
        grad_values(parts.take(tiles_of(held_tokens, key_tile) * key_tile * shape.padded_size())),
        floats(parts.used()) {}
  float* queries;  // [query_tile, padded_size], scaled
  float* queries_transposed;
  float* grad_out;
  float* grad_out_transposed;
  float* keys;  // [key_tile, padded_size]
  float* values;
  float* weights;       // [key_tile, query_tile]: S, then P, then P * factor
  float* grad_weights;  // [key_tile, query_tile]: grad_out v^T, then dS
  float* factors;
  float* grad_queries;  // [query_tile, padded_size]
  float* grad_keys;     // [held_tokens in whole tiles, padded_size]
  float* grad_values;
  std::int64_t floats;
};

// Query and key tiles [first, last) of one head, and which gradients are to be made of them.
struct Task {
  std::int64_t batch, head;
  std::int64_t first_query_tile, last_query_tile;
  std::int64_t first_key_tile, last_key_tile;
  bool queries, keys;
};

// weights: S -> P * factor, grad_weights: grad_out v^T -> dS. Key j is visible to query i when j <= i + diagonal.
void differentiate_softmax(float* weights, float* grad_weights, const float* factors, std::int64_t keys,
                           std::int64_t diagonal, const float* lse, const float* row_dot) {
  for (std::int64_t j = 0; j < keys; ++j) {
    float* p = weights + j * query_tile;
    float* grad = grad_weights + j * query_tile;
    const std::int64_t first_visible = std::clamp<std::int64_t>(j - diagonal, 0, query_tile);
#pragma omp simd
    for (std::int64_t i = 0; i < query_tile; ++i) p[i] = vec::exp(p[i] - lse[i]);
    std::fill(p, p + first_visible, 0.0f);
    if (factors == nullptr) {
#pragma omp simd
      for (std::int64_t i = 0; i < query_tile; ++i) grad[i] = p[i] * (grad[i] - row_dot[i]);
    } else {
      const float* factor = factors + j * query_tile;
#pragma omp simd
      for (std::int64_t i = 0; i < query_tile; ++i) {
        grad[i] = p[i] * (factor[i] * grad[i] - row_dot[i]);
        p[i] *= factor[i];
      }
    }
    std::fill(grad, grad + first_visible, 0.0f);
  }
}

template <class T>
void store_rows(const float* from, const HeadShape& shape, std::int64_t count, float scale, T* to,
                std::int64_t stride) {
  for (std::int64_t r = 0; r < count; ++r) {
    const float* source = from + r * shape.padded_size();
    T* target = to + r * stride;
#pragma omp simd
    for (std::int64_t d = 0; d < shape.size(); ++d) target[d] = from_float<T>(scale * source[d]);
  }
}

template <class T>
void run_task(const AttentionBackward& args, const HeadShape& shape, const Task& task, const BackwardTiles& tiles) {
  const std::int64_t size = shape.size(), padded = shape.padded_size(), stride = args.qkv.row_stride;
  const std::int64_t first_row = task.batch * shape.tokens, column = task.head * size;
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  const T* qkv = args.qkv.row<T>(first_row) + column;
  T* grad_qkv = args.grad_qkv.row<T>(first_row) + column;
  const float* head_lse = args.lse.as<float>() + (task.batch * shape.heads + task.head) * shape.tokens;
  const std::int64_t key_rows = (task.last_key_tile - task.first_key_tile) * key_tile;
  if (task.keys) {
    std::fill_n(tiles.grad_keys, key_rows * padded, 0.0f);
    std::fill_n(tiles.grad_values, key_rows * padded, 0.0f);
  }

  for (std::int64_t q = task.first_query_tile; q < task.last_query_tile; ++q) {
    const std::int64_t first_query = q * query_tile, queries = std::min(query_tile, shape.tokens - first_query);
    load_rows(qkv + first_query * stride, stride, queries, query_tile, shape, scale, tiles.queries);
    transpose_queries(tiles.queries, shape, tiles.queries_transposed);
    load_rows(args.grad_out.row<T>(first_row + first_query) + column, args.grad_out.row_stride, queries, query_tile,
              shape, 1.0f, tiles.grad_out);
    transpose_queries(tiles.grad_out, shape, tiles.grad_out_transposed);
    float lse[query_tile] = {}, row_dot[query_tile] = {};
    for (std::int64_t i = 0; i < queries; ++i) {
      const T* out = args.out.row<T>(first_row + first_query + i) + column;
      float dot = 0;
#pragma omp simd reduction(+ : dot)
      for (std::int64_t d = 0; d < size; ++d) dot += tiles.grad_out[i * padded + d] * to_float(out[d]);
      row_dot[i] = dot;
      lse[i] = head_lse[first_query + i];
    }

    const std::int64_t end_key_tile = std::min(task.last_key_tile, tiles_of(first_query + queries, key_tile));
    for (std::int64_t k = task.first_key_tile; k < end_key_tile; ++k) {
      const std::int64_t first_key = k * key_tile, keys = std::min(key_tile, first_query + queries - first_key);
      const T* rows = qkv + first_key * stride;
      load_rows(rows + shape.channels, stride, keys, keys, shape, 1.0f, tiles.keys);
      load_rows(rows + 2 * shape.channels, stride, keys, keys, shape, 1.0f, tiles.values);
      tile_product(tiles.keys, padded, 1, tiles.queries_transposed, query_tile, tiles.weights, query_tile, keys,
                   query_tile, size, false);
      tile_product(tiles.values, padded, 1, tiles.grad_out_transposed, query_tile, tiles.grad_weights, query_tile, keys,
                   query_tile, size, false);
      const bool dropout = args.dropout.probability > 0;
      if (dropout) {
        dropout_factors(args.dropout, task.head, first_row + first_query, first_key, (keys + 3) / 4 * 4, queries,
                        tiles.factors);
      }
      differentiate_softmax(tiles.weights, tiles.grad_weights, dropout ? tiles.factors : nullptr, keys,
                            first_query - first_key, lse, row_dot);
      if (task.keys) {
        const std::int64_t offset = (k - task.first_key_tile) * key_tile * padded;
        tile_product(tiles.weights, query_tile, 1, tiles.grad_out, padded, tiles.grad_values + offset, padded, keys,
                     padded, queries, true);
        tile_product(tiles.grad_weights, query_tile, 1, tiles.queries, padded, tiles.grad_keys + offset, padded, keys,
                     padded, queries, true);
      }
      if (task.queries) {
        tile_product(tiles.grad_weights, 1, query_tile, tiles.keys, padded, tiles.grad_queries, padded, queries, padded,
                     keys, k > task.first_key_tile);
      }
    }
    if (task.queries) {
      store_rows(tiles.grad_queries, shape, queries, scale, grad_qkv + first_query * args.grad_qkv.row_stride,
                 args.grad_qkv.row_stride);
    }
  }

  if (task.keys) {
    const std::int64_t first_key = task.first_key_tile * key_tile;
    const std::int64_t keys = std::min(key_rows, shape.tokens - first_key);
    T* to = grad_qkv + first_key * args.grad_qkv.row_stride;
    store_rows(tiles.grad_keys, shape, keys, 1.0f, to + shape.channels, args.grad_qkv.row_stride);
    store_rows(tiles.grad_values, shape, keys, 1.0f, to + 2 * shape.channels, args.grad_qkv.row_stride);
  }
}

// Many heads: one task each makes all three gradients, five products per tile. Few heads would leave threads idle: then
// each tile of queries and each tile of keys is a task, which makes the weights twice, seven products per tile. Which
// of both follows from the shape, never from the number of threads.
constexpr std::int64_t many_heads = 16;

std::int64_t tasks_per_head(const HeadShape& shape) {
  return shape.batch * shape.heads >= many_heads ? 1 : 2 * tiles_of(shape.tokens, key_tile);
}

// Tokens whose key and value gradients one task sums: its one tile, or the whole sequence.
std::int64_t held_tokens(const HeadShape& shape) {
  return tasks_per_head(shape) > 1 ? std::min(shape.tokens, key_tile) : shape.tokens;
}

Task task_of(const HeadShape& shape, std::int64_t index) {
  const std::int64_t heads = shape.batch * shape.heads, which = index % heads, part = index / heads;
  const std::int64_t tiles = tiles_of(shape.tokens, key_tile);
  Task task{which / shape.heads, which % shape.heads, 0, tiles, 0, tiles, true, true};
  if (tasks_per_head(shape) == 1) return task;
  // The longest first: key tiles from the front, query tiles from the back.
  task.keys = part % 2 == 0;
  task.queries = !task.keys;
  const std::int64_t tile = task.keys ? part / 2 : tiles - 1 - part / 2;
  if (task.keys) {
    task.first_key_tile = task.first_query_tile = tile;
    task.last_key_tile = tile + 1;
  } else {
    task.first_query_tile = tile;
    task.last_query_tile = tile + 1;
  }
  return task;
}

static_assert(query_tile == key_tile, "a tile on the diagonal holds the same positions as queries and as keys");

}  // namespace

std::int64_t attention_backward_scratch(const HeadShape& shape) {
  return BackwardTiles(shape, held_tokens(shape), ScratchParts(nullptr)).floats;
}

void attention_backward(const Context& context, const AttentionBackward& args, Workspace& workspace) {
  const HeadShape shape{args.batch, args.out.rows() / args.batch, args.out.columns(), args.heads};
  const std::int64_t floats = attention_backward_scratch(shape);
  const std::int64_t tasks = shape.batch * shape.heads * tasks_per_head(shape);
  const Workspace::Scope scope(workspace);
  float* scratch = workspace.take(DType::fp32, Shape{context.threads(), floats}).as<float>();
  dispatch(args.qkv.dtype, "attention: qkv", [&](auto tag) {
    using T = typename decltype(tag)::type;
#pragma omp parallel for schedule(dynamic) num_threads(context.threads())
    for (std::int64_t index = 0; index < tasks; ++index) {
      int thread = 0;
#ifdef _OPENMP
      thread = omp_get_thread_num();
#endif
      const BackwardTiles tiles(shape, held_tokens(shape), ScratchParts(scratch + thread * floats));
      run_task<T>(args, shape, task_of(shape, index), tiles);
    }
  });
}

}  // namespace greyhound::cpu
