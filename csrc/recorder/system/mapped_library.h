// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace plab::recorder {

// The path of a mapped library whose file name starts with `prefix`; "" if none is.
std::string find_mapped_library(const char* prefix);

}  // namespace plab::recorder
