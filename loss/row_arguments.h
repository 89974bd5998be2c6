// From the public options of a loss to the arguments of the row kernels. Internal.
#pragma once

#include <greyhound/core/workspace.h>
#include <greyhound/kernels/cross_entropy.h>
#include <greyhound/loss/options.h>
#include <greyhound/loss/sums.h>

namespace greyhound::loss {

// [..., C] as [N, C].
template <class Void>
BasicTensor<Void> as_matrix(const BasicTensor<Void>& tensor) {
  BasicTensor<Void> matrix = tensor;
  matrix.shape = Shape{tensor.rows(), tensor.columns()};
  return matrix;
}

// Dense values of any shape as one row of them.
ConstTensor as_vector(const ConstTensor& tensor, const char* name);

// Results of all rows of a call, in the workspace: reduced once at the end, so that sums know nothing of chunks.
struct RowResults {
  Tensor ce, z, weight;  // [N] fp32
  Tensor denominator;    // [1] fp32

  // `take(dtype, shape)` is Workspace::take, or whatever adds up sizes.
  template <class Take>
  static RowResults make(std::int64_t rows, Take&& take) {
    RowResults results;
    results.ce = take(DType::fp32, Shape{rows});
    results.z = take(DType::fp32, Shape{rows});
    results.weight = take(DType::fp32, Shape{rows});
    results.denominator = take(DType::fp32, Shape{1});
    return results;
  }
};

// What a cross-entropy call says about its rows, checked, and handed to the kernels range by range.
class RowArguments {
 public:
  // Throws a usage Error on options or arrays that do not fit together.
  RowArguments(const ConstTensor& targets, std::int64_t rows, std::int64_t vocab, const CrossEntropyOptions& options,
               const RowOutputs& outputs, const RowResults& results);

  // Before the first gradient: counts the valid rows where this call's own count is the denominator.
  void prepare_denominator(const Context& context);

  // The kernel's arguments for rows first .. first + logits.rows(). `grad` may be empty.
  CrossEntropyRows range(std::int64_t first, const ConstTensor& logits, const Tensor& grad) const;

  // After the last row: adds all row results to `sums`.
  void add_to(const Context& context, LossSums& sums) const;

  Targets targets(std::int64_t first, std::int64_t count) const;
  Targets targets() const { return targets(0, rows_); }
  const CrossEntropyOptions& options() const { return options_; }
  const ConstTensor& denominator() const { return denominator_; }

 private:
  ConstTensor targets_;
  std::int64_t rows_, vocab_;
  CrossEntropyOptions options_;
  RowOutputs outputs_;
  RowResults results_;
  ConstTensor denominator_;
};

}  // namespace greyhound::loss
