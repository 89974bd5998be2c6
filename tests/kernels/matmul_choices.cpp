// Texts of saved algorithm choices; and on the CPU, where there is nothing to choose.
#include <doctest/doctest.h>
#include <greyhound/kernels/matmul_choices.h>

#include <array>
#include <string>

using namespace greyhound;

namespace {

const std::string line =
    "\"NVIDIA H200\" cublaslt=130002 m=8 n=16 k=24 a=bf16 out=fp32 transpose_a=0 transpose_b=1 lda=24 ldb=24 ldc=16 "
    "ld_out=16 align_a=16 align_b=16 align_c=16 align_out=16 bias=0 device_scalars=0 algorithm=" +
    std::string(112, '0') + "0123456789abcdef";

std::string replaced(const std::string& what, const std::string& with) {
  std::string text = line;
  const std::size_t at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), with);
}

// The message of the usage Error that loading throws; empty where it does not.
std::string complaint(const std::string& text) {
  try {
    load_matmul_choices(Context::cpu(), text);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("matmul choices: well-formed texts") {
  for (const std::string& text : {std::string(), std::string("\n\n"), line, line + "\n", line + "\r\n" + line + "\n",
                                  "# chosen at start-up\n\n" + line, replaced("NVIDIA H200", "another device")}) {
    CAPTURE(text);
    CHECK(complaint(text).empty());
  }
}

TEST_CASE("matmul choices: on the CPU nothing is tuned") {
  const Context context = Context::cpu();
  const TuneMatmuls tuning(context);
  CHECK(save_matmul_choices(context).empty());
}

TEST_CASE("matmul choices: malformed texts name the line and what was expected") {
  struct Case {
    std::string text, expected;
  };
  const Case cases[] = {
      {"choices", "\""},
      {replaced("\"NVIDIA H200\"", "\"\""), "the device's name"},
      {replaced("cublaslt=130002", "cublaslt=new"), "the library's version"},
      {replaced("cublaslt=130002", "cublas=130002"), "cublaslt="},
      {replaced(" n=16", ""), " n="},
      {replaced("m=8", "m=-8"), "a number"},
      {replaced("m=8", "m="), "a number"},
      {replaced("m=8", "m=99999999999999999999"), "a number"},
      {replaced("m=8", "m=8.5"), " n="},
      {replaced("a=bf16", "a=int8"), "fp32, bf16 or fp16"},
      {replaced("transpose_b=1", "transpose_b=2"), "0 or 1"},
      {replaced(" algorithm=", " activation=gelu ld_pre=16 algorithm="), " algorithm="},
      {replaced("0123456789abcdef", "0123456789abcde"), "128 hexadecimal digits"},
      {replaced("0123456789abcdef", "0123456789abcdeg"), "128 hexadecimal digits"},
      {line + "0", "the end of the line"},
      {line.substr(0, 40), "expected"},
      {line.substr(0, line.find("algorithm")), "algorithm="},
  };
  for (const Case& c : cases) {
    CAPTURE(c.text);
    const std::string first = complaint(c.text), third = complaint("# comment\n" + line + "\n" + c.text + "\n");
    CAPTURE(first);
    CHECK(first.find("line 1: expected") != std::string::npos);
    CHECK(first.find(c.expected) != std::string::npos);
    CHECK(third.find("line 3: expected") != std::string::npos);
  }
}

TEST_CASE("matmul choices: nothing to choose on the CPU") {
  const Context context = Context::cpu(1);
  CHECK(load_matmul_choices(context, line) == 0);
  CHECK(save_matmul_choices(context).empty());

  std::array<float, 4> a{1, 2, 3, 4}, b{5, 6, 7, 8}, out{-1, -1, -1, -1};
  Matmul args;
  args.a = tensor(a.data(), DType::fp32, {2, 2});
  args.b = tensor(b.data(), DType::fp32, {2, 2});
  args.out = tensor(out.data(), DType::fp32, {2, 2});
  Workspace none;
  tune_matmul(context, args, none);
  CHECK(out == std::array<float, 4>{-1, -1, -1, -1});
  CHECK(save_matmul_choices(context).empty());
  args.out = tensor(out.data(), DType::fp32, {1, 4});
  CHECK_THROWS_AS(tune_matmul(context, args, none), Error);  // as matmul does
}
