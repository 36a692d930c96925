// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace plab::recorder::spool {

// CRC-32C, by the processor where it can. `so_far`: the sum over what stands before these bytes.
uint32_t crc32c(const void* data, size_t bytes, uint32_t so_far = 0);

}  // namespace plab::recorder::spool
