// SPDX-License-Identifier: Apache-2.0
#include "recorder/cupti/graph_nodes.h"

#include <utility>

namespace plab::recorder {

void GraphNodes::add(uint32_t cbid, const cupti::GraphData& data, uint32_t correlation) {
  spool::GraphNode row{};
  if (functions_.GetGraphNodeId(data.node, &row.graph_node_id) != cupti::kSuccess) return;
  // An executable graph consists of clones. The call that clones a node is not the call that created it.
  const bool clone = cbid == cupti::kGraphNodeCloned;
  if (clone && functions_.GetGraphNodeId(data.original_node, &row.original) != cupti::kSuccess) return;
  if (!clone) row.correlation_id = correlation;
  if (row.original == 0 && row.correlation_id == 0) return;
  const std::lock_guard lock(mutex_);
  nodes_.push_back(row);
}

std::vector<spool::GraphNode> GraphNodes::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(nodes_, {});
}

}  // namespace plab::recorder
