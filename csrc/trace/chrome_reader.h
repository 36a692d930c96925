// SPDX-License-Identifier: Apache-2.0
// Reads the JSON of torch.profiler piece by piece: the whole file is never in memory, and whatever is whole
// in a damaged one is kept.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "trace/chrome_sink.h"

namespace plab::trace {

class ChromeReader {
 public:
  // The next bytes of the file, cut anywhere.
  void feed(std::string_view bytes);
  // There are no more bytes.
  void finish();

  const ChromeTables& tables() const { return sink_.tables; }
  ChromeTables& tables() { return sink_.tables; }
  const ChromeDamage& damage() const { return sink_.damage; }
  const auto& others() const { return sink_.others; }
  // Members of the root object other than the events, as JSON.
  const std::map<std::string, std::string>& root() const { return root_; }
  // A list of events was found, empty or not.
  bool found_events() const { return found_events_; }

 private:
  enum class Place : uint8_t { kStart, kRoot, kEvents, kLost, kDone, kBehind };

  void read();
  // One step at a place: kOk to go on, kMore where bytes are missing, kBad where damage begins.
  Step step(JsonCursor& cursor);
  Step start(JsonCursor& cursor);
  Step root_member(JsonCursor& cursor);
  Step next_event(JsonCursor& cursor);
  Step find_event(JsonCursor& cursor);
  // Behind the end of the root: another document of the same kind is left out, it would count twice.
  Step behind_the_end(JsonCursor& cursor);
  // Counts the damage at the cursor; the next event is looked for behind it.
  void give_up(JsonCursor& cursor, Step why);

  std::string buffer_;    // bytes not yet read, and while reading the cursor's padding
  size_t wait_for_ = 0;   // do not retry before this many bytes: a long value is read twice, not often
  bool is_last_ = false;  // no more bytes will come
  char last_read_ = 0;    // before the buffer, blanks aside
  Place place_ = Place::kStart;
  bool is_list_ = false;  // the root is the list of events itself
  bool found_events_ = false;
  bool was_done_ = false;  // the root ended as it should
  std::map<std::string, std::string> root_;
  ChromeSink sink_;
};

}  // namespace plab::trace
