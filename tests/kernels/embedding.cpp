#include <greyhound/kernels/embedding.h>

#include <doctest/doctest.h>
#include <greyhound/tests/kernels/buffers.h>
#include <greyhound/tests/reference/embedding.h>

#include <limits>

using namespace greyhound;
using namespace greyhound::testing;

namespace {

constexpr std::int32_t int32_min = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t int32_max = std::numeric_limits<std::int32_t>::max();

const std::vector<reference::EmbeddingShape> shapes = {{1, 1, 1, 1, 1, 1},
                                                       {2, 5, 3, 7, 8, 6},
                                                       {3, 17, 300, 2100, 2112, 17},
                                                       {4, 33, 65, 5, 5, 40},
                                                       {2, 9, 4, 5000000, 5000000, 9}};

std::vector<std::int32_t> random_tokens(const reference::EmbeddingShape& shape, std::uint64_t seed) {
  std::vector<std::int32_t> tokens;
  for (double value : random_values(shape.batch * shape.tokens, seed, 0, 1)) {
    tokens.push_back(static_cast<std::int32_t>(value * static_cast<double>(shape.vocab)));
  }
  return tokens;
}

Tensor token_tensor(std::vector<std::int32_t>& tokens, const reference::EmbeddingShape& shape) {
  return Tensor(tokens.data(), DType::int32, {shape.batch, shape.tokens});
}

}  // namespace

TEST_CASE("embedding_forward: token plus position, strides, first position") {
  for (const reference::EmbeddingShape& shape : shapes) {
    if (shape.vocab > 100000) continue;
    for (DType dtype : {DType::fp32, DType::bf16}) {
      for (bool with_positions : {true, false}) {
        CAPTURE(shape.channels);
        CAPTURE(name_of(dtype));
        std::vector<std::int32_t> tokens = random_tokens(shape, 1);
        const std::int64_t rows = shape.batch * shape.tokens, first_position = shape.positions - shape.tokens;
        Buffer weight(dtype, shape.padded_vocab, shape.channels, random_values(shape.padded_vocab * shape.channels, 2),
                      shape.channels + 1);
        Buffer positions(dtype, shape.positions, shape.channels, random_values(shape.positions * shape.channels, 3));
        Buffer out(dtype, rows, shape.channels, shape.channels + 2);
        ErrorWord errors{};
        embedding_forward(Context::cpu(2),
                          {token_tensor(tokens, shape), weight.tensor(), with_positions ? positions.tensor() : Tensor(),
                           out.tensor(), shape.vocab, first_position, &errors});
        const std::vector<double> exact =
            reference::embedding_forward(shape, tokens, weight.values(),
                                         with_positions ? positions.values() : std::vector<double>(), first_position);
        check_close(out.values(), exact, dtype, 1e-7, 0);
        CHECK(errors.count == 0);
        CHECK(out.intact());
      }
    }
  }
}

TEST_CASE("embedding: a token outside the vocabulary is recorded, gets the position alone, and no gradient") {
  const reference::EmbeddingShape shape{2, 4, 3, 5, 8, 4};
  std::vector<std::int32_t> tokens = {0, 4, 5, -1, int32_max, int32_min, 2, 7};
  Buffer weight(DType::fp32, 8, 3, random_values(24, 4)), positions(DType::fp32, 4, 3, random_values(12, 5));
  Buffer out(DType::fp32, 8, 3);
  ErrorWord errors{};
  EmbeddingForward args{token_tensor(tokens, shape), weight.tensor(), positions.tensor(), out.tensor(), 5, 0, &errors};
  embedding_forward(Context::cpu(2), args);
  CHECK(errors.count == 5);
  CHECK(errors.first_row == 2);
  CHECK(errors.value == 5);
  check_close(out.values(), reference::embedding_forward(shape, tokens, weight.values(), positions.values(), 0),
              DType::fp32, 1e-7, 0);

  // A second call adds to the word and keeps the first; without a word nothing is recorded.
  tokens[0] = -7;
  embedding_forward(Context::cpu(1), args);
  CHECK(errors.count == 11);
  CHECK(errors.first_row == 2);
  CHECK(errors.value == 5);
  args.errors = nullptr;
  args.position_weight = {};
  embedding_forward(Context::cpu(1), args);
  for (std::int64_t c = 0; c < 3; ++c) CHECK(out.get(2, c) == 0);

  Buffer grad_out(DType::fp32, 8, 3, random_values(24, 6)), grad_token(DType::fp32, 8, 3),
      grad_position(DType::fp32, 4, 3);
  ExactWorkspace memory(embedding_backward_workspace_bytes(Context::cpu(1), 8, 5, 3));
  Workspace workspace = memory.workspace();
  embedding_backward(
      Context::cpu(2),
      {grad_out.tensor(), token_tensor(tokens, shape), grad_token.tensor(), grad_position.tensor(), 5, false, false},
      workspace);
  std::vector<double> exact_token(24, 0.0), exact_position(12, 0.0);
  reference::embedding_backward(shape, tokens, grad_out.values(), &exact_token, &exact_position);
  check_close(grad_token.values(), exact_token, DType::fp32, 1e-7, 0);
  check_close(grad_position.values(), exact_position, DType::fp32, 1e-7, 1e-12);
}

TEST_CASE("embedding_backward: overwrite and accumulate against fp64, exact workspace") {
  for (const reference::EmbeddingShape& shape : shapes) {
    if (shape.vocab > 100000) continue;
    for (DType dtype : {DType::fp32, DType::bf16}) {
      CAPTURE(shape.channels);
      CAPTURE(name_of(dtype));
      std::vector<std::int32_t> tokens = random_tokens(shape, 7);
      const std::int64_t rows = shape.batch * shape.tokens;
      const Context context = Context::cpu(2);
      Buffer grad_out(dtype, rows, shape.channels, random_values(rows * shape.channels, 8), shape.channels + 1);
      Buffer grad_token(DType::fp32, shape.padded_vocab, shape.channels, shape.channels + 3);
      Buffer grad_position(DType::fp32, shape.positions, shape.channels);
      ExactWorkspace memory(embedding_backward_workspace_bytes(context, rows, shape.vocab, shape.channels));
      Workspace workspace = memory.workspace();
      EmbeddingBackward args{grad_out.tensor(),
                             token_tensor(tokens, shape),
                             grad_token.tensor(),
                             grad_position.tensor(),
                             shape.vocab,
                             false,
                             false};
      std::vector<double> exact_token(shape.padded_vocab * shape.channels, 0.0);
      std::vector<double> exact_position(shape.positions * shape.channels, 0.0);
      embedding_backward(context, args,
                         workspace);  // over NaN: every row is written, padded ones and far positions too
      reference::embedding_backward(shape, tokens, grad_out.values(), &exact_token, &exact_position);
      check_close(grad_token.values(), exact_token, DType::fp32, 1e-7, 1e-12);
      check_close(grad_position.values(), exact_position, DType::fp32, 1e-7, 1e-12);

      args.accumulate_token = args.accumulate_position = true;
      embedding_backward(context, args, workspace);
      reference::embedding_backward(shape, tokens, grad_out.values(), &exact_token, &exact_position);
      check_close(grad_token.values(), exact_token, DType::fp32, 2e-7, 1e-12);
      check_close(grad_position.values(), exact_position, DType::fp32, 2e-7, 1e-12);
      CHECK(grad_token.intact());
      CHECK(grad_position.intact());
      CHECK(memory.intact());
    }
  }
}

TEST_CASE("embedding_backward: accumulating visits the rows of seen tokens only") {
  // Seen tokens 3 and 4999999 of five million, which takes every digit of the radix sort. All other rows hold NaN, and
  // must still do so afterwards.
  const reference::EmbeddingShape shape{1, 3, 2, 5000000, 5000000, 3};
  std::vector<std::int32_t> tokens = {4999999, 3, 4999999};
  std::vector<float> grad_token(static_cast<std::size_t>(shape.vocab) * 2, std::numeric_limits<float>::quiet_NaN());
  for (std::int64_t c : {6, 7, 9999998, 9999999}) grad_token[c] = 1;
  Buffer grad_out(DType::fp32, 3, 2, {1, 2, 3, 4, 5, 6});
  const Context context = Context::cpu(2);
  ExactWorkspace memory(embedding_backward_workspace_bytes(context, 3, shape.vocab, 2));
  Workspace workspace = memory.workspace();
  embedding_backward(context,
                     {grad_out.tensor(),
                      token_tensor(tokens, shape),
                      Tensor(grad_token.data(), DType::fp32, {shape.vocab, 2}),
                      {},
                      shape.vocab,
                      true,
                      false},
                     workspace);
  CHECK(grad_token[6] == 4);
  CHECK(grad_token[7] == 5);
  CHECK(grad_token[9999998] == 7);
  CHECK(grad_token[9999999] == 9);
  std::int64_t numbers = 0;
  for (float value : grad_token) numbers += !std::isnan(value);
  CHECK(numbers == 4);
}

TEST_CASE("embedding_backward: one frequent token, the same bits for any number of threads") {
  const reference::EmbeddingShape shape{5, 101, 520, 3000, 3008, 128};
  std::vector<std::int32_t> tokens = random_tokens(shape, 9);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = i % 3 == 0 ? tokens[i] : 17;
  const std::int64_t rows = shape.batch * shape.tokens;
  Buffer grad_out(DType::bf16, rows, shape.channels, random_values(rows * shape.channels, 10));
  check_same_bits_for_all_threads([&](const Context& context) {
    Buffer grad_token(DType::fp32, shape.padded_vocab, shape.channels);
    Buffer grad_position(DType::fp32, shape.positions, shape.channels);
    ExactWorkspace memory(embedding_backward_workspace_bytes(context, rows, shape.vocab, shape.channels));
    Workspace workspace = memory.workspace();
    embedding_backward(context,
                       {grad_out.tensor(), token_tensor(tokens, shape), grad_token.tensor(), grad_position.tensor(),
                        shape.vocab, false, false},
                       workspace);
    std::vector<unsigned char> bytes = grad_token.bytes();
    bytes.insert(bytes.end(), grad_position.bytes().begin(), grad_position.bytes().end());
    return bytes;
  });
}

TEST_CASE("embedding: wrong arguments are refused") {
  const Context context = Context::cpu(1);
  const reference::EmbeddingShape shape{1, 2, 3, 4, 4, 2};
  std::vector<std::int32_t> tokens = {0, 1};
  Buffer weight(DType::fp32, 4, 3), positions(DType::fp32, 2, 3), out(DType::fp32, 2, 3);
  EmbeddingForward args{token_tensor(tokens, shape), weight.tensor(), positions.tensor(), out.tensor(), 4, 0, nullptr};
  args.first_position = 1;
  CHECK_THROWS_WITH_AS(embedding_forward(context, args), "embedding_forward: positions 1 to 3 of 2", Error);
  args.first_position = 0;
  args.vocab = 5;
  CHECK_THROWS_WITH_AS(embedding_forward(context, args),
                       "embedding_forward: vocab 5 does not fit token_weight of 4 rows", Error);
  args.vocab = 4;
  args.out = weight.tensor();
  CHECK_THROWS_AS(embedding_forward(context, args), Error);
}
