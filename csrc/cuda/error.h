// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace plab {

/// A CUDA call failed. The text names the call, CUDA's reason and the place.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace plab
