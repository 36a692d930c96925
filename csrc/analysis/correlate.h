// SPDX-License-Identifier: Apache-2.0
// Find the API call that launched each GPU operation.
#pragma once

#include <vector>

#include "trace/columns.h"

namespace plab::analysis {

// Per operation the row of the call with the same (process, correlation id), or kNone: launched before the
// recording began, or its record was lost. If a runtime call and the driver call inside it share an id, the
// one that started first is used. One call may own many operations (a graph). O((C + O) log C).
std::vector<int32_t> call_of(const trace::Correlations& operations, const trace::Correlations& calls,
                             trace::Column<int64_t> call_start_ns);

}  // namespace plab::analysis
