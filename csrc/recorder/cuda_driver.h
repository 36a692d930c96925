// SPDX-License-Identifier: Apache-2.0
// What the recorder asks the CUDA driver itself, through the copy that the process already has.
#pragma once

namespace plab::recorder::cuda_driver {

// True if this process uses a GPU already (a device's primary context is active), so that things made before
// the recording, CUDA graphs for one, may still be in use. Never loads or initialises the driver.
bool context_exists() noexcept;

// A function of the driver that takes one place to write to; null where the process has no driver.
using Call = int (*)(void** written);
Call find_call(const char* name) noexcept;

}  // namespace plab::recorder::cuda_driver
