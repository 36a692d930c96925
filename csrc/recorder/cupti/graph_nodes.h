// SPDX-License-Identifier: Apache-2.0
// Which call added a node to a CUDA graph. Kernels of a replay carry their node, so they get the line that captured
// them and not only the line that replays the graph.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "recorder/cupti/library.h"
#include "recorder/spool/records.h"

namespace plab::recorder {

class GraphNodes {
 public:
  explicit GraphNodes(const cupti::Functions& functions) : functions_(functions) {}

  // Thread: any, in a callback of Domain::kResource; `correlation` is of the call that the thread is in, 0:
  // none that is recorded. Graphs are made rarely, so this may lock and allocate. Throws std::bad_alloc.
  void add(uint32_t cbid, const cupti::GraphData& data, uint32_t correlation);

  // Thread: the consumer.
  std::vector<spool::GraphNode> take();

 private:
  const cupti::Functions& functions_;
  std::mutex mutex_;  // never held into CUPTI
  std::vector<spool::GraphNode> nodes_;
};

}  // namespace plab::recorder
