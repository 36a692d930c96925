// SPDX-License-Identifier: Apache-2.0
// Checks of an op's arguments. They throw std::invalid_argument, which arrives in Python as
// ValueError with the sentence alone: "heavy_layer: w1 has shape [5, 4] but x has last dimension 8".
#pragma once

#include <initializer_list>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "torch_abi/tensor.h"

namespace plab::torch_abi {

template <class... Parts>
[[noreturn, gnu::noinline, gnu::cold]] void throw_value_error(const Parts&... parts) {
  std::ostringstream sentence;
  (sentence << ... << parts);
  throw std::invalid_argument(sentence.str());
}

}  // namespace plab::torch_abi

// The parts of the sentence are evaluated only when the check fails.
#define PLAB_CHECK(condition, ...)                       \
  do {                                                   \
    if (!(condition)) [[unlikely]]                       \
      ::plab::torch_abi::throw_value_error(__VA_ARGS__); \
  } while (false)

namespace plab::torch_abi {

// A tensor argument with the name that the caller knows it by.
struct Named {
  const char* name;
  const Tensor& tensor;
};

// All tensors have the first one's dtype and device.
inline void check_alike(const char* op, std::initializer_list<Named> arguments) {
  const Named& first = *arguments.begin();
  const Dtype dtype = first.tensor.dtype();
  const Device device = first.tensor.device();
  for (const Named& one : arguments) {
    PLAB_CHECK(one.tensor.device() == device, op, ": ", one.name, " is on ", name(one.tensor.device()),
               " but ", first.name, " is on ", name(device));
    PLAB_CHECK(one.tensor.dtype() == dtype, op, ": ", one.name, " has dtype ", name(one.tensor.dtype()),
               " but ", first.name, " has dtype ", name(dtype));
  }
}

}  // namespace plab::torch_abi
