// How far two lists of numbers are apart. A NaN in them is the answer, which no bound lets pass.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace greyhound::test {

// The largest of `value(i)`, 0 <= i < count.
template <class Value>
double largest_of(std::size_t count, Value value) {
  double largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double next = value(i);
    if (std::isnan(next)) return next;
    if (next > largest) largest = next;
  }
  return largest;
}

template <class T>
double largest_magnitude(const std::vector<T>& values) {
  return largest_of(values.size(), [&](std::size_t i) { return std::abs(static_cast<double>(values[i])); });
}

// NaN as well where the lists are not of one length.
template <class A, class B>
double largest_difference(const std::vector<A>& a, const std::vector<B>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::quiet_NaN();
  return largest_of(a.size(),
                    [&](std::size_t i) { return std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])); });
}

}  // namespace greyhound::test
