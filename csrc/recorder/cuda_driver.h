// SPDX-License-Identifier: Apache-2.0
// The one question that the recorder asks the CUDA driver itself, through the copy the process already has.
#pragma once

namespace plab::recorder::cuda_driver {

// True if this process uses a GPU already (a device's primary context is active), so that things made before
// the recording, CUDA graphs for one, may still be in use. Never loads or initialises the driver.
bool context_exists() noexcept;

}  // namespace plab::recorder::cuda_driver
