// Which of the library's algorithms makes a matrix product: timed on request, saved, and loaded again.
#pragma once

#include <greyhound/kernels/matmul.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace greyhound {

// On CUDA, matmul takes the first algorithm that cuBLASLt's heuristic offers for a shape, unless one was chosen here. A
// choice belongs to the context (and its copies) and to everything that makes one library call differ from another:
// shape, dtypes, orientations, row strides, alignments up to 16 bytes, whether there is a bias, and whether alpha comes
// from the device. It does not depend on the values of alpha and beta.
//
// Tuning is to change how long a product takes and nothing else: it chooses among the algorithms that cut the sum over
// K as the heuristic's first does, and give its bits on the operands at hand. Choices are saved so that they need not
// be timed again. On the CPU there is nothing to choose: nothing is tuned, saved texts are empty, and no entry applies.

// Times the library's candidates for this product on the caller's buffers and keeps the fastest; a product with GELU
// that a kernel of ours makes on Hopper has none. A GPU at its power limit lowers its clock, and another algorithm may
// be the fastest then: large products are repeated until it does. `args` are those of the later matmul calls, with
// values like theirs (zeros take less power, and the bits of sums of zeros say nothing); what `out` and pre_activation
// hold afterwards is undefined. Takes matmul_workspace_bytes and waits for the stream, many times: not to be called in
// a CUDA graph capture (a usage Error). Throws as matmul does.
GREYHOUND_API void tune_matmul(const Context& context, const Matmul& args, Workspace& workspace);

// As long as it lives, matmul on `context` (and its copies) tunes a product that has no choice before it makes it: one
// pass over a program's work tunes all products in it. What products with a beta other than 0 leave in `out` is
// undefined meanwhile; matmul waits for the stream and must not be captured in a CUDA graph; and the operands should be
// like those of later calls.
class GREYHOUND_API TuneMatmuls {
 public:
  explicit TuneMatmuls(const Context& context);
  ~TuneMatmuls();
  TuneMatmuls(const TuneMatmuls&) = delete;
  TuneMatmuls& operator=(const TuneMatmuls&) = delete;

 private:
  Context context_;
  bool before_ = false;
};

// The context's choices, tuned and loaded, as text: one line for each, in an order that depends on the choices alone.
//
//   "NVIDIA H200" cublaslt=120804 m=2048 n=128256 k=4096 a=bf16 out=bf16 ... algorithm=<128 hexadecimal digits>
//
// Device, version of cuBLASLt, what the choice belongs to (row-major, as in Matmul), and the library's own description
// of the algorithm, which is valid for that version alone.
GREYHOUND_API std::string save_matmul_choices(const Context& context);

// Adds choices to the context, in place of those that it had for the same products. Returns how many entries apply:
// those of another device or version of the library are passed over. Empty lines and lines that begin with # are
// skipped; any other malformed line is a usage Error that names it, and then nothing is added. The library checks a
// loaded choice when its product first runs; matmul throws a runtime Error where it refuses the algorithm, and never
// takes another one silently.
GREYHOUND_API std::int64_t load_matmul_choices(const Context& context, std::string_view text);

}  // namespace greyhound
