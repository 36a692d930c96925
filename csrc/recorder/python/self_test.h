// SPDX-License-Identifier: Apache-2.0
// Does the frame walk see what Python's own frame objects say? Asked once, before the first capture.
#pragma once

#include <string>

namespace plab::recorder {

// GIL held. Runs a small known program; false and one sentence where the two differ.
bool python_stacks_self_test(std::string* why_not);

}  // namespace plab::recorder
