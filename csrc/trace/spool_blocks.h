// SPDX-License-Identifier: Apache-2.0
// The layout shared by the writer and the reader of a capture file, besides its records.
#pragma once

#include <cstddef>
#include <cstdint>

#include "trace/spool.h"

namespace plab::trace::spool {

inline constexpr uint32_t kMagic = 0x4c534c50;             // "PLSL"
inline constexpr size_t kLargestBlock = size_t{64} << 20;  // a reader can trust a length only within bounds

// Over the header's other fields and the payload: a damaged kind or size must not pass either.
uint32_t block_crc(const BlockHeader& header, const void* payload);

// The size of a record of this kind, 1 for text; 0: there is no such kind.
size_t record_bytes(Kind kind);

}  // namespace plab::trace::spool
