// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace plab::recorder::spool {

// CRC-32C, with the processor's instruction if it has one. `so_far`: the checksum of the preceding bytes.
uint32_t crc32c(const void* data, size_t bytes, uint32_t so_far = 0);

}  // namespace plab::recorder::spool
