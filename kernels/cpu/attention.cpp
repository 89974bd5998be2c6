#include <greyhound/kernels/attention.h>

#include <greyhound/kernels/cpu/attention_tiles.h>
#include <greyhound/kernels/cpu/vector_math.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include <cmath>
#include <limits>

namespace greyhound::cpu {

namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

struct ForwardTiles {
  ForwardTiles(const HeadShape& shape, ScratchParts parts)
      : queries(parts.take(query_tile * shape.padded_size())),
        queries_transposed(parts.take(query_tile * shape.size())),
        keys(parts.take(key_tile * shape.padded_size())),
        values(parts.take(key_tile * shape.padded_size())),
        weights(parts.take(key_tile * query_tile)),
        factors(parts.take(key_tile * query_tile)),
        sums(parts.take(query_tile * shape.padded_size())),
        floats(parts.used()) {}
  float* queries;             // [query_tile, padded_size], scaled
  float* queries_transposed;  // [size, query_tile]
  float* keys;                // [key_tile, padded_size]
  float* values;
  float* weights;  // [key_tile, query_tile]: scores, then exp(score - maximum)
  float* factors;  // of dropout
  float* sums;     // [query_tile, padded_size]: weighted sums of values
  std::int64_t floats;
};

// Turns scores into weights relative to the new maximum of each query; `maximum` and `total` are brought up to date,
// and `correction` is what earlier sums have to be multiplied by. Key j is visible to query i when j <= i + diagonal.
void online_softmax(float* weights, std::int64_t keys, std::int64_t diagonal, float* maximum, float* total,
                    float* correction) {
  float reference[query_tile], sum[query_tile] = {};
  std::copy_n(maximum, query_tile, reference);
  for (std::int64_t j = 0; j < keys; ++j) {
    float* row = weights + j * query_tile;
    const std::int64_t first_visible = std::clamp<std::int64_t>(j - diagonal, 0, query_tile);
    std::fill(row, row + first_visible, minus_infinity);
#pragma omp simd
    for (std::int64_t i = 0; i < query_tile; ++i) reference[i] = row[i] > reference[i] ? row[i] : reference[i];
  }
#pragma omp simd
  for (std::int64_t i = 0; i < query_tile; ++i) {
    const float before = maximum[i];
    maximum[i] = reference[i];
    // As long as every score is -inf, 0 takes the maximum's place: -inf - -inf would be NaN.
    reference[i] = reference[i] == minus_infinity ? 0.0f : reference[i];
    correction[i] = vec::exp(before - reference[i]);
  }
  for (std::int64_t j = 0; j < keys; ++j) {
    float* row = weights + j * query_tile;
#pragma omp simd
    for (std::int64_t i = 0; i < query_tile; ++i) {
      row[i] = vec::exp(row[i] - reference[i]);
      sum[i] += row[i];
    }
  }
#pragma omp simd
  for (std::int64_t i = 0; i < query_tile; ++i) total[i] = total[i] * correction[i] + sum[i];
}

// One tile of queries of one head.
template <class T>
void forward_tile(const AttentionForward& args, const HeadShape& shape, std::int64_t batch, std::int64_t head,
                  std::int64_t first_query, const ForwardTiles& tiles) {
  const std::int64_t size = shape.size(), padded = shape.padded_size(), stride = args.qkv.row_stride;
  const std::int64_t queries = std::min(query_tile, shape.tokens - first_query);
  const std::int64_t first_row = batch * shape.tokens;
  const T* qkv = args.qkv.row<T>(first_row) + head * size;
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  load_rows(qkv + first_query * stride, stride, queries, query_tile, shape, scale, tiles.queries);
  transpose_queries(tiles.queries, shape, tiles.queries_transposed);
  std::fill_n(tiles.sums, query_tile * padded, 0.0f);

  float maximum[query_tile], total[query_tile] = {}, correction[query_tile];
  std::fill_n(maximum, query_tile, minus_infinity);
  for (std::int64_t first_key = 0; first_key < first_query + queries; first_key += key_tile) {
    const std::int64_t keys = std::min(key_tile, first_query + queries - first_key);
    const T* rows = qkv + first_key * stride;
    load_rows(rows + shape.channels, stride, keys, keys, shape, 1.0f, tiles.keys);
    load_rows(rows + 2 * shape.channels, stride, keys, keys, shape, 1.0f, tiles.values);
    tile_product(tiles.keys, padded, 1, tiles.queries_transposed, query_tile, tiles.weights, query_tile, keys,
                 query_tile, size, false);
    online_softmax(tiles.weights, keys, first_query - first_key, maximum, total, correction);
    if (args.dropout.probability > 0) {
      dropout_factors(args.dropout, head, first_row + first_query, first_key, (keys + 3) / 4 * 4, queries,
                      tiles.factors);
#pragma omp simd
      for (std::int64_t e = 0; e < keys * query_tile; ++e) tiles.weights[e] *= tiles.factors[e];
    }
    for (std::int64_t i = 0; i < queries; ++i) {
      float* row = tiles.sums + i * padded;
#pragma omp simd
      for (std::int64_t d = 0; d < padded; ++d) row[d] *= correction[i];
    }
    tile_product(tiles.weights, 1, query_tile, tiles.values, padded, tiles.sums, padded, queries, padded, keys, true);
  }

  for (std::int64_t i = 0; i < queries; ++i) {
    T* out = args.out.row<T>(first_row + first_query + i) + head * size;
    const float* row = tiles.sums + i * padded;
    for (std::int64_t d = 0; d < size; ++d) out[d] = from_float<T>(row[d] / total[i]);
    if (args.lse) {
      args.lse.as<float>()[(batch * shape.heads + head) * shape.tokens + first_query + i] =
          maximum[i] + std::log(total[i]);
    }
  }
}

// Attention of one query over the cache, columns [first, first + count) of its head's output, count <= decode_columns.
constexpr std::int64_t decode_columns = 128;

template <class T>
void decode_head(const AttentionDecode& args, std::int64_t batch, std::int64_t head, std::int64_t size,
                 std::int64_t first, std::int64_t count) {
  const std::int64_t positions = args.key_cache.shape[1];
  const T* query = args.qkv.row<T>(batch) + head * size;
  const float scale = 1.0f / std::sqrt(static_cast<float>(size));
  float sums[decode_columns] = {}, scores[key_tile];
  float maximum = minus_infinity, total = 0;
  for (std::int64_t first_key = 0; first_key <= args.position; first_key += key_tile) {
    const std::int64_t keys = std::min(key_tile, args.position + 1 - first_key);
    float reference = maximum;
    for (std::int64_t j = 0; j < keys; ++j) {
      const T* key = args.key_cache.row<T>(batch * positions + first_key + j) + head * size;
      float dot = 0;
#pragma omp simd reduction(+ : dot)
      for (std::int64_t d = 0; d < size; ++d) dot += scale * to_float(query[d]) * to_float(key[d]);
      scores[j] = dot;
      reference = dot > reference ? dot : reference;
    }
    const float before = maximum;
    maximum = reference;
    reference = reference == minus_infinity ? 0.0f : reference;
    const float correction = vec::exp(before - reference);
    total *= correction;
    for (std::int64_t d = 0; d < count; ++d) sums[d] *= correction;
    for (std::int64_t j = 0; j < keys; ++j) {
      const T* value = args.value_cache.row<T>(batch * positions + first_key + j) + head * size + first;
      const float weight = vec::exp(scores[j] - reference);
      total += weight;
#pragma omp simd
      for (std::int64_t d = 0; d < count; ++d) sums[d] += weight * to_float(value[d]);
    }
  }
  T* out = args.out.row<T>(batch) + head * size + first;
  for (std::int64_t d = 0; d < count; ++d) out[d] = from_float<T>(sums[d] / total);
}

}  // namespace

std::int64_t attention_forward_scratch(const HeadShape& shape) {
  return ForwardTiles(shape, ScratchParts(nullptr)).floats;
}

void attention_forward(const Context& context, const AttentionForward& args, Workspace& workspace) {
  const HeadShape shape{args.batch, args.out.rows() / args.batch, args.out.columns(), args.heads};
  const std::int64_t query_tiles = tiles_of(shape.tokens, query_tile);
  const std::int64_t floats = attention_forward_scratch(shape);
  const Workspace::Scope scope(workspace);
  float* scratch = workspace.take(DType::fp32, Shape{context.threads(), floats}).as<float>();
  dispatch(args.qkv.dtype, "attention: qkv", [&](auto tag) {
    using T = typename decltype(tag)::type;
    // The last tiles, which see most keys, first: less waiting at the end.
#pragma omp parallel for schedule(dynamic) num_threads(context.threads())
    for (std::int64_t task = 0; task < shape.batch * shape.heads * query_tiles; ++task) {
      int thread = 0;
#ifdef _OPENMP
      thread = omp_get_thread_num();
#endif
      const ForwardTiles tiles(shape, ScratchParts(scratch + thread * floats));
      const std::int64_t heads = shape.batch * shape.heads, which = task % heads;
      forward_tile<T>(args, shape, which / shape.heads, which % shape.heads,
                      (query_tiles - 1 - task / heads) * query_tile, tiles);
    }
  });
}

std::size_t attention_workspace_bytes(const Context& context, DType, std::int64_t batch, std::int64_t tokens,
                                      std::int64_t channels, std::int64_t heads) {
  const HeadShape shape{batch, tokens, channels, heads};
  const std::int64_t floats = std::max(attention_forward_scratch(shape), attention_backward_scratch(shape));
  return Workspace::size(DType::fp32, Shape{context.threads(), floats});
}

void attention_decode(const Context& context, const AttentionDecode& args, Workspace&) {
  const std::int64_t batch = args.out.rows(), channels = args.out.columns(), size = channels / args.heads;
  const std::int64_t positions = args.key_cache.shape[1];
  const std::int64_t parts = tiles_of(size, decode_columns);
  dispatch(args.qkv.dtype, "attention: qkv", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (std::int64_t b = 0; b < batch; ++b) {
      const T* row = args.qkv.row<T>(b);
      std::copy_n(row + channels, channels, args.key_cache.row<T>(b * positions + args.position));
      std::copy_n(row + 2 * channels, channels, args.value_cache.row<T>(b * positions + args.position));
    }
    [[maybe_unused]] const bool worthwhile = batch * channels * (args.position + 1) > 32 * 1024;
#pragma omp parallel for schedule(static) num_threads(context.threads()) if (worthwhile)
    for (std::int64_t task = 0; task < batch * args.heads * parts; ++task) {
      const std::int64_t which = task / parts, first = task % parts * decode_columns;
      decode_head<T>(args, which / args.heads, which % args.heads, size, first, std::min(decode_columns, size - first));
    }
  });
}

}  // namespace greyhound::cpu
