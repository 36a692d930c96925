// SPDX-License-Identifier: Apache-2.0
#include "trace/chrome_reader.h"

#include <algorithm>
#include <cstring>

namespace plab::trace {
namespace {

constexpr size_t kLargestMember = size_t{1} << 20;  // of the root: facts, not data
constexpr size_t kMostMembers = 1000;

// An event begins here, as far as its first member tells: `{ "ph": ..`.
Step begins_event(JsonCursor cursor) {
  static constexpr std::string_view kFirst[] = {"ph", "cat", "name", "pid", "tid", "ts", "dur"};
  JsonValue name;
  if (const Step step = cursor.take('{'); step != Step::kOk) return step;
  if (const Step step = cursor.name(name); step != Step::kOk) return step;
  return std::ranges::find(kFirst, name.raw) != std::end(kFirst) ? Step::kOk : Step::kBad;
}

// The last character in [begin, end) that is not a blank, `before` if there is none.
char last_character(const char* begin, const char* end, char before) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (end > begin && is_blank(end[-1])) --end;
  return end > begin ? end[-1] : before;
}

}  // namespace

void ChromeReader::feed(std::string_view bytes) {
  buffer_.append(bytes);
  if (buffer_.size() >= wait_for_) read();
}

void ChromeReader::finish() {
  is_last_ = true;
  read();
  sink_.damage.cut = was_done_ ? 0 : 1;
  buffer_ = {};
}

void ChromeReader::read() {
  const size_t held = buffer_.size();
  buffer_.append(JsonCursor::kPadding, '\0');
  JsonCursor cursor(buffer_.data(), buffer_.data() + held);
  for (;;) {
    const char* before = cursor.at();
    const bool lost = place_ == Place::kLost;
    const Step found = step(cursor);
    if (found == Step::kOk) {
      sink_.damage.lost_bytes += lost ? cursor.at() - before : 0;
      continue;
    }
    cursor.go(before);
    cursor.peek();  // blanks say nothing
    sink_.damage.lost_bytes += lost ? cursor.at() - before : 0;
    if (found == Step::kMore && (!is_last_ || cursor.at_end())) break;
    give_up(cursor, found);
  }
  const size_t done = static_cast<size_t>(cursor.at() - buffer_.data());
  buffer_.resize(held);
  last_read_ = last_character(buffer_.data(), buffer_.data() + done, last_read_);
  buffer_.erase(0, done);
  wait_for_ = done == 0 ? 2 * held : 0;
}

Step ChromeReader::step(JsonCursor& cursor) {
  switch (place_) {
    case Place::kStart:
      return start(cursor);
    case Place::kRoot:
      return root_member(cursor);
    case Place::kEvents:
      return next_event(cursor);
    case Place::kLost:
      return find_event(cursor);
    case Place::kDone:
    case Place::kBehind:
      break;
  }
  return behind_the_end(cursor);
}

Step ChromeReader::behind_the_end(JsonCursor& cursor) {
  const char first = cursor.peek();
  if (cursor.at_end()) return Step::kMore;
  if (place_ == Place::kDone) {
    const Step event = first == '{' ? begins_event(cursor) : Step::kBad;
    if (event == Step::kMore && !is_last_) return event;
    // An event belongs to this document, whose end came too soon; so does what is no JSON at all.
    if (event == Step::kOk || (first != '{' && first != '[')) return Step::kBad;
    sink_.damage.more_documents = 1;
    place_ = Place::kBehind;
  }
  cursor.go(buffer_.data() + buffer_.size() - JsonCursor::kPadding);
  return Step::kOk;
}

void ChromeReader::give_up(JsonCursor& cursor, Step why) {
  if (place_ == Place::kEvents) {
    sink_.damage.broken_events += why == Step::kBad;
  } else if (place_ != Place::kLost) {
    ++sink_.damage.broken_root;
  }
  place_ = Place::kLost;
  cursor.go(cursor.at() + 1);
  ++sink_.damage.lost_bytes;
}

Step ChromeReader::start(JsonCursor& cursor) {
  const char first = cursor.peek();
  if (cursor.at_end()) return Step::kMore;
  if (first != '{' && first != '[') return Step::kBad;
  is_list_ = found_events_ = first == '[';
  place_ = is_list_ ? Place::kEvents : Place::kRoot;
  return cursor.take(first);
}

Step ChromeReader::root_member(JsonCursor& cursor) {
  const char first = cursor.peek();
  if (first == ',') return cursor.take(',');
  if (first == '}') {
    place_ = Place::kDone;
    was_done_ = true;
    return cursor.take('}');
  }
  JsonValue name, value;
  if (const Step step = cursor.name(name); step != Step::kOk) return step;
  if (cursor.peek() == '[' && name.raw == "traceEvents") {
    place_ = Place::kEvents;
    found_events_ = true;
    return cursor.take('[');
  }
  const char* begin = cursor.at();
  if (const Step step = cursor.value(value); step != Step::kOk) return step;
  const std::string_view json(begin, cursor.at() - begin);
  if (json.size() <= kLargestMember && root_.size() < kMostMembers)
    root_.insert_or_assign(std::string(name.raw), json);
  return Step::kOk;
}

Step ChromeReader::next_event(JsonCursor& cursor) {
  const char first = cursor.peek();
  if (first == ',') return cursor.take(',');
  if (first == ']') {
    place_ = is_list_ ? Place::kDone : Place::kRoot;
    was_done_ = is_list_;
    return cursor.take(']');
  }
  if (first != '{') {
    JsonValue stray;
    const Step step = cursor.value(stray);
    sink_.damage.broken_events += step == Step::kOk;
    return step;
  }
  ChromeEvent event;
  const Step step = read_event(cursor, event);
  if (step == Step::kOk) sink_.add(event);
  return step;
}

// Behind damage: where the next event begins, by its first member.
Step ChromeReader::find_event(JsonCursor& cursor) {
  if (cursor.at_end()) return Step::kMore;
  const char* end = buffer_.data() + buffer_.size() - JsonCursor::kPadding;
  const auto* brace = static_cast<const char*>(std::memchr(cursor.at(), '{', end - cursor.at()));
  cursor.go(brace != nullptr ? brace : end);
  if (brace == nullptr) return Step::kOk;
  // `"args": {"name": ..` is none.
  const bool is_value = last_character(buffer_.data(), brace, last_read_) == ':';
  const Step step = is_value ? Step::kBad : begins_event(cursor);
  if (step == Step::kOk) {
    place_ = Place::kEvents;
    found_events_ = true;
  }
  if (step == Step::kOk || (step == Step::kMore && !is_last_)) return step;
  cursor.go(brace + 1);
  return Step::kOk;
}

}  // namespace plab::trace
