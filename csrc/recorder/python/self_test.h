// SPDX-License-Identifier: Apache-2.0
// Checks once, before the first capture, that the frame walk agrees with Python's own frame objects.
#pragma once

#include <string>

namespace plab::recorder {

// GIL held. Runs a small known program; false and one sentence where the two differ.
bool python_stacks_self_test(std::string* why_not);

}  // namespace plab::recorder
