// The numbers of a request: how the JSON describes a tensor's contents, and how results go back into it.
#pragma once

#include <greyhound/core/context.h>
#include <greyhound/core/tensor.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <vector>

namespace greyhound::scoreboard {

using Json = nlohmann::ordered_json;

// A number, or "nan", "inf", "-inf": JSON has no such numbers.
double to_number(const Json& json);
Json to_json(double value);

// {"values": [...]}, {"fill": c} or {"hash": seed, "scale": s} (about uniform in [-s, s), the same in Python), each
// with "set": [[element, value], ...] over it.
std::vector<double> numbers(const Json& spec, std::int64_t count);
// The same for class indices: {"hash": seed, "below": V}.
std::vector<std::int64_t> indices(const Json& spec, std::int64_t count);

// Memory on the context's device with a tensor in it. Rows may stand further apart than they are long; the gaps hold
// NaN.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Context& context, DType dtype, const Shape& shape, std::int64_t row_stride = 0);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  // Numbers as `spec` says. Zeros with a few elements set need no copy on the host.
  void fill(const Context& context, const Json& spec);
  void set_indices(const Context& context, const std::vector<std::int64_t>& values);
  std::vector<unsigned char> bytes(const Context& context) const;
  std::vector<double> values(const Context& context) const;
  double element(const Context& context, std::int64_t at) const;  // of dense rows

  const Tensor& tensor() const { return tensor_; }
  explicit operator bool() const { return static_cast<bool>(tensor_); }

 private:
  std::size_t size() const;
  void upload(const Context& context, const std::vector<unsigned char>& bytes);
  void set(const Context& context, const std::vector<double>& values);

  Tensor tensor_;
};

// FNV-1a: tells whether two results have the same bits.
std::uint64_t digest(std::uint64_t start, const std::vector<unsigned char>& bytes);

}  // namespace greyhound::scoreboard
