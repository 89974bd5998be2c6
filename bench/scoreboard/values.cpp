#include "values.h"

#include <greyhound/core/memory.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace greyhound::scoreboard {

namespace {

// As peer_calls.py has it.
std::uint32_t hash(std::uint64_t element, std::uint64_t seed) {
  auto bits = static_cast<std::uint32_t>(element * 2654435761u + seed * 40503u + 12345u);
  bits ^= bits >> 16;
  bits *= 0x45d9f3bu;
  return bits ^ (bits >> 16);
}

template <class T, class Convert>
void overlay(const Json& spec, std::vector<T>& values, Convert&& convert) {
  if (!spec.contains("set")) return;
  for (const Json& entry : spec.at("set")) values.at(entry.at(0).get<std::size_t>()) = convert(entry.at(1));
}

template <class T, class Convert>
bool listed(const Json& spec, std::int64_t count, std::vector<T>& values, Convert&& convert) {
  if (spec.contains("values")) {
    for (const Json& value : spec.at("values")) values.push_back(convert(value));
    require(values.size() == static_cast<std::size_t>(count), "request: expected ", count, " values, got ",
            values.size());
    return true;
  }
  if (!spec.contains("fill")) return false;
  values.assign(static_cast<std::size_t>(count), convert(spec.at("fill")));
  return true;
}

}  // namespace

double to_number(const Json& json) {
  if (json.is_number()) return json.get<double>();
  const auto text = json.get<std::string>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  require(text == "inf" || text == "-inf", "request: ", text, " is no number");
  return text == "inf" ? HUGE_VAL : -HUGE_VAL;
}

Json to_json(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

std::vector<double> numbers(const Json& spec, std::int64_t count) {
  std::vector<double> values;
  if (!listed(spec, count, values, to_number)) {
    const auto seed = spec.at("hash").get<std::uint64_t>();
    const double scale = spec.at("scale").get<double>();
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back(scale * (hash(static_cast<std::uint64_t>(i), seed) * 0x1p-31 - 1));
    }
  }
  overlay(spec, values, to_number);
  return values;
}

std::vector<std::int64_t> indices(const Json& spec, std::int64_t count) {
  const auto convert = [](const Json& json) { return json.get<std::int64_t>(); };
  std::vector<std::int64_t> values;
  if (!listed(spec, count, values, convert)) {
    const auto seed = spec.at("hash").get<std::uint64_t>();
    const auto below = spec.at("below").get<std::uint32_t>();
    for (std::int64_t i = 0; i < count; ++i) values.push_back(hash(static_cast<std::uint64_t>(i), seed) % below);
  }
  overlay(spec, values, convert);
  return values;
}

Buffer::Buffer(const Context& context, DType dtype, const Shape& shape, std::int64_t row_stride) {
  const std::int64_t stride = row_stride == 0 ? shape.columns() : row_stride;
  const std::size_t bytes = static_cast<std::size_t>(shape.rows() * stride) * size_of(dtype);
  // A tensor without elements still has an address: it was given.
  tensor_ = Tensor(allocate(context.device(), bytes + memory_alignment), dtype, shape, stride, context.device());
  fill_bytes(context, tensor_.data, 0xff, bytes);  // NaN in every floating-point dtype
}

Buffer::Buffer(Buffer&& other) noexcept : tensor_(std::exchange(other.tensor_, Tensor())) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(tensor_, other.tensor_);
  return *this;
}

Buffer::~Buffer() {
  if (tensor_) deallocate(tensor_.device, tensor_.data);
}

std::size_t Buffer::size() const {
  return static_cast<std::size_t>(tensor_.rows() * tensor_.row_stride) * size_of(tensor_.dtype);
}

void Buffer::upload(const Context& context, const std::vector<unsigned char>& bytes) {
  copy_bytes(context, tensor_.data, tensor_.device, bytes.data(), Device::cpu(), bytes.size());
  context.synchronize();
}

void Buffer::fill(const Context& context, const Json& spec) {
  if (!spec.contains("fill") || spec.at("fill") != 0 || tensor_.elements() < (1 << 24)) {
    return set(context, numbers(spec, tensor_.elements()));
  }
  zero(context, tensor_);
  dispatch(tensor_.dtype, "request", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (const Json& entry : spec.at("set")) {
      const T value = from_float<T>(static_cast<float>(to_number(entry.at(1))));
      T* to = tensor_.as<T>() + entry.at(0).get<std::int64_t>();
      copy_bytes(context, to, tensor_.device, &value, Device::cpu(), sizeof(T));
      context.synchronize();
    }
  });
}

void Buffer::set(const Context& context, const std::vector<double>& values) {
  std::vector<unsigned char> host(size(), 0xff);
  dispatch(tensor_.dtype, "request", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto column = static_cast<std::int64_t>(i) % tensor_.columns();
      const auto row = static_cast<std::int64_t>(i) / tensor_.columns();
      const T value = from_float<T>(static_cast<float>(values[i]));
      std::memcpy(&host[static_cast<std::size_t>(row * tensor_.row_stride + column) * sizeof(T)], &value, sizeof(T));
    }
  });
  upload(context, host);
}

void Buffer::set_indices(const Context& context, const std::vector<std::int64_t>& values) {
  std::vector<unsigned char> host(size());
  if (!values.empty()) std::memcpy(host.data(), values.data(), host.size());
  upload(context, host);
}

std::vector<unsigned char> Buffer::bytes(const Context& context) const {
  std::vector<unsigned char> host(size());
  copy_bytes(context, host.data(), Device::cpu(), tensor_.data, tensor_.device, host.size());
  context.synchronize();
  return host;
}

std::vector<double> Buffer::values(const Context& context) const {
  const std::vector<unsigned char> host = bytes(context);
  std::vector<double> all;
  dispatch(tensor_.dtype, "result", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (std::int64_t row = 0; row < tensor_.rows(); ++row) {
      for (std::int64_t column = 0; column < tensor_.columns(); ++column) {
        T value;
        std::memcpy(&value, &host[static_cast<std::size_t>(row * tensor_.row_stride + column) * sizeof(T)], sizeof(T));
        all.push_back(to_float(value));
      }
    }
  });
  return all;
}

double Buffer::element(const Context& context, std::int64_t at) const {
  double result = 0;
  dispatch(tensor_.dtype, "result", [&](auto tag) {
    using T = typename decltype(tag)::type;
    T value;
    copy_bytes(context, &value, Device::cpu(), tensor_.as<T>() + at, tensor_.device, sizeof(T));
    context.synchronize();
    result = to_float(value);
  });
  return result;
}

std::uint64_t digest(std::uint64_t start, const std::vector<unsigned char>& bytes) {
  for (unsigned char byte : bytes) start = (start ^ byte) * 0x100000001b3u;
  return start;
}

}  // namespace greyhound::scoreboard
