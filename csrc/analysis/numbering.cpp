// SPDX-License-Identifier: Apache-2.0
#include "analysis/numbering.h"

#include <bit>

namespace plab::analysis {
namespace {

// Open addressing: the slots hold numbers, and at most half of them are taken.
class Slots {
 public:
  explicit Slots(const std::vector<int64_t>& distinct)
      : distinct_(&distinct), slots_(std::bit_ceil(2 * distinct.size() + 1024), kFree) {
    for (size_t i = 0; i < distinct.size(); ++i) find(distinct[i]) = static_cast<int32_t>(i);
  }

  bool full() const { return 2 * distinct_->size() > slots_.size(); }

  // The slot of a value: its number, or kFree.
  int32_t& find(int64_t value) {
    const size_t mask = slots_.size() - 1;
    // Fibonacci hashing: the high bits of the product depend on all bits of the value.
    size_t at = (static_cast<uint64_t>(value) * 0x9E3779B97F4A7C15ULL >> 32) & mask;
    while (slots_[at] != kFree && (*distinct_)[slots_[at]] != value) at = (at + 1) & mask;
    return slots_[at];
  }

  static constexpr int32_t kFree = -1;

 private:
  const std::vector<int64_t>* distinct_;
  std::vector<int32_t> slots_;
};

}  // namespace

Numbering numbering(trace::Column<int64_t> values) {
  Numbering out;
  out.number.reserve(values.size());
  Slots slots(out.distinct);
  for (const int64_t value : values) {
    int32_t& number = slots.find(value);
    if (number != Slots::kFree) {
      out.number.push_back(number);
      continue;
    }
    number = static_cast<int32_t>(out.distinct.size());
    out.number.push_back(number);
    out.distinct.push_back(value);
    if (slots.full()) slots = Slots(out.distinct);
  }
  return out;
}

}  // namespace plab::analysis
