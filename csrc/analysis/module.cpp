// SPDX-License-Identifier: Apache-2.0
// _analysis: the analyses as Python functions over numpy columns. Arrays are passed in and out without
// copies; the GIL is released while an analysis runs.
#include "analysis/module.h"

#include <stdexcept>
#include <string>

#include "analysis/aggregate.h"
#include "analysis/attribution.h"
#include "analysis/autograd_link.h"
#include "analysis/containment.h"
#include "analysis/correlate.h"
#include "analysis/gaps.h"
#include "analysis/intervals.h"
#include "analysis/nesting.h"
#include "analysis/numbering.h"
#include "analysis/overlap.h"
#include "analysis/projection.h"
#include "analysis/schedule.h"
#include "analysis/statistics.h"
#include "analysis/steps.h"

namespace py = pybind11;
using plab::analysis::give;
using plab::analysis::In;
using plab::trace::Column;

namespace {

template <class T>
Column<T> view(const In<T>& array) {
  if (array.ndim() != 1) throw std::invalid_argument("a column is one-dimensional");
  return {array.data(), static_cast<size_t>(array.size())};
}

template <class First, class... Rest>
void same_length(const First& first, const Rest&... rest) {
  if (!((first.size() == rest.size()) && ...))
    throw std::invalid_argument("columns of one table differ in length");
}

// Every key must be in [lowest, limit): the analyses index with it.
void in_range(Column<int32_t> keys, int64_t lowest, int64_t limit, const char* what) {
  for (const int32_t key : keys) {
    if (key < lowest || key >= limit) {
      throw std::invalid_argument(std::string(what) + " " + std::to_string(key) + " is not in [" +
                                  std::to_string(lowest) + ", " + std::to_string(limit) + ")");
    }
  }
}

template <class Work>
auto unlocked(Work work) {
  py::gil_scoped_release release;
  return work();
}

using I64 = In<int64_t>;
using I32 = In<int32_t>;
using U8 = In<uint8_t>;

py::tuple merged(const I64& start_ns, const I64& end_ns) {
  same_length(start_ns, end_ns);
  auto out = unlocked([s = view(start_ns), e = view(end_ns)] { return plab::analysis::merged(s, e); });
  return py::make_tuple(give(std::move(out.start_ns)), give(std::move(out.end_ns)));
}

py::array_t<int64_t> busy_ns(const I64& start_ns, const I64& end_ns, const I32& track, int32_t tracks) {
  same_length(start_ns, end_ns, track);
  in_range(view(track), 0, tracks, "track");
  const plab::trace::Ranges ranges{view(start_ns), view(end_ns), view(track)};
  return give(unlocked([&] { return plab::analysis::busy_ns(ranges, tracks); }));
}

py::tuple contain(const I64& start_ns, const I64& end_ns, const I32& track, const I64& time_ns,
                  const I32& time_track, int64_t tolerance_ns) {
  same_length(start_ns, end_ns, track);
  same_length(time_ns, time_track);
  const plab::trace::Ranges ranges{view(start_ns), view(end_ns), view(track)};
  const plab::trace::Moments moments{view(time_ns), view(time_track)};
  auto out = unlocked([&] { return plab::analysis::contain(ranges, moments, tolerance_ns); });
  return py::make_tuple(give(std::move(out.parent)), give(std::move(out.innermost)), out.dropped);
}

py::array_t<int32_t> call_of(const I32& op_process, const I64& op_correlation, const I32& call_process,
                             const I64& call_correlation, const I64& call_start_ns) {
  same_length(op_process, op_correlation);
  same_length(call_process, call_correlation, call_start_ns);
  const plab::trace::Correlations operations{view(op_process), view(op_correlation)};
  const plab::trace::Correlations calls{view(call_process), view(call_correlation)};
  const auto start = view(call_start_ns);
  return give(unlocked([&] { return plab::analysis::call_of(operations, calls, start); }));
}

py::tuple give_links(plab::analysis::Links&& links) {
  return py::make_tuple(give(std::move(links.phase)), give(std::move(links.match)),
                        give(std::move(links.forward_row)));
}

py::tuple link_by_counter(const I64& start_ns, const I32& thread, const I64& next_sequence,
                          const I64& node_sequence, const I32& node_thread, const U8& traits) {
  same_length(start_ns, thread, next_sequence, node_sequence, node_thread, traits);
  const plab::analysis::LaunchProbes launches{view(start_ns),      view(thread),      view(next_sequence),
                                              view(node_sequence), view(node_thread), view(traits)};
  return give_links(unlocked([&] { return plab::analysis::link_by_counter(launches); }));
}

py::tuple link_by_ranges(const I64& start_ns, const I64& end_ns, const I32& track, const I64& sequence,
                         const U8& evaluates, const I32& process, const I64& launch_ns,
                         const I32& launch_track, const U8& has_stack, const U8& traits,
                         int64_t tolerance_ns) {
  same_length(start_ns, end_ns, track, sequence, evaluates, process);
  same_length(launch_ns, launch_track, has_stack, traits);
  const plab::analysis::OperatorRanges operators{
      {view(start_ns), view(end_ns), view(track)}, view(sequence), view(evaluates), view(process)};
  const plab::trace::Moments launches{view(launch_ns), view(launch_track)};
  const auto stacks = view(has_stack), flags = view(traits);
  auto out = unlocked(
      [&] { return plab::analysis::link_by_ranges(operators, launches, stacks, flags, tolerance_ns); });
  return py::make_tuple(give_links(std::move(out.links)), give(std::move(out.range)),
                        give(std::move(out.forward_range)), out.dropped_ranges);
}

py::tuple attribute(const I32& call, const I32& stack, const U8& phase, const U8& match,
                    const I32& forward_row, const U8& traits) {
  same_length(stack, phase, match, forward_row, traits);
  in_range(view(call), plab::trace::kNone, stack.size(), "call");
  in_range(view(forward_row), plab::trace::kNone, stack.size(), "forward row");
  const plab::analysis::CallAnswers answers{view(stack), view(phase), view(match), view(forward_row),
                                            view(traits)};
  const auto calls = view(call);
  auto out = unlocked([&] { return plab::analysis::attribute(calls, answers); });
  return py::make_tuple(give(std::move(out.stack)), give(std::move(out.phase)), give(std::move(out.match)),
                        give(std::move(out.reason)));
}

py::tuple sum_by_key(const I32& key, const I64& value, int32_t keys) {
  same_length(key, value);
  in_range(view(key), INT32_MIN, keys, "key");
  auto out =
      unlocked([k = view(key), v = view(value), keys] { return plab::analysis::sum_by_key(k, v, keys); });
  return py::make_tuple(give(std::move(out.total)), give(std::move(out.count)));
}

py::array_t<int32_t> nearest_marked(const I32& parent, const U8& marked) {
  same_length(parent, marked);
  return give(
      unlocked([p = view(parent), m = view(marked)] { return plab::analysis::nearest_marked(p, m); }));
}

py::array_t<int64_t> set_time_ns(const I64& start_ns, const I64& end_ns, const I32& track,
                                 const I32& operation_class, const I64& window_start_ns,
                                 const I64& window_end_ns, const I32& window_track, int32_t classes) {
  same_length(start_ns, end_ns, track, operation_class);
  same_length(window_start_ns, window_end_ns, window_track);
  if (classes < 1 || classes > plab::analysis::kMostClasses) {
    throw std::invalid_argument("classes must be 1 to " + std::to_string(plab::analysis::kMostClasses));
  }
  in_range(view(operation_class), 0, classes, "class");
  const plab::trace::Ranges operations{view(start_ns), view(end_ns), view(track)};
  const plab::trace::Ranges windows{view(window_start_ns), view(window_end_ns), view(window_track)};
  const auto which = view(operation_class);
  auto times =
      give(unlocked([&] { return plab::analysis::set_time_ns(operations, which, windows, classes); }));
  return times.reshape({window_start_ns.size(), py::ssize_t{1} << classes});
}

py::tuple lane_time_ns(const I64& start_ns, const I64& end_ns, const I32& track, const I32& lane,
                       int32_t tracks, int32_t lanes) {
  same_length(start_ns, end_ns, track, lane);
  in_range(view(track), 0, tracks, "track");
  in_range(view(lane), 0, lanes, "lane");
  const plab::trace::Ranges operations{view(start_ns), view(end_ns), view(track)};
  const auto lane_of = view(lane);
  auto out = unlocked([&] { return plab::analysis::lane_time_ns(operations, lane_of, tracks, lanes); });
  py::list levels;
  for (auto& level : out.level_ns) levels.append(give(std::move(level)));
  return py::make_tuple(give(std::move(out.busy_ns)), give(std::move(out.shared_ns)), levels);
}

py::array_t<int32_t> nesting_lanes(const I64& start_ns, const I64& end_ns, const I32& track) {
  same_length(start_ns, end_ns, track);
  const plab::trace::Ranges intervals{view(start_ns), view(end_ns), view(track)};
  return give(unlocked([&] { return plab::analysis::nesting_lanes(intervals); }));
}

py::tuple period_of(const I32& symbols) {
  const auto out = unlocked([s = view(symbols)] { return plab::analysis::period_of(s); });
  return py::make_tuple(out.first, out.length, out.times);
}

py::tuple gaps_between(const I64& start_ns, const I64& end_ns, const I32& track) {
  same_length(start_ns, end_ns, track);
  in_range(view(track), 0, INT32_MAX, "track");
  const plab::trace::Ranges operations{view(start_ns), view(end_ns), view(track)};
  auto out = unlocked([&] { return plab::analysis::gaps_between(operations); });
  return py::make_tuple(give(std::move(out.start_ns)), give(std::move(out.end_ns)),
                        give(std::move(out.track)), give(std::move(out.next)));
}

py::tuple cut_by_winners(const I64& window_start_ns, const I64& window_end_ns, const I32& window_track,
                         const I64& start_ns, const I64& end_ns, const I32& track, const I32& layer) {
  same_length(window_start_ns, window_end_ns, window_track);
  same_length(start_ns, end_ns, track, layer);
  const plab::trace::Ranges windows{view(window_start_ns), view(window_end_ns), view(window_track)};
  const plab::trace::Ranges activities{view(start_ns), view(end_ns), view(track)};
  const auto layers = view(layer);
  auto out =
      unlocked([&] { return plab::analysis::cut(windows, plab::analysis::winners(activities, layers)); });
  return py::make_tuple(give(std::move(out.window)), give(std::move(out.start_ns)),
                        give(std::move(out.end_ns)), give(std::move(out.winner)));
}

py::tuple numbering(const I64& values) {
  auto out = unlocked([v = view(values)] { return plab::analysis::numbering(v); });
  return py::make_tuple(give(std::move(out.number)), give(std::move(out.distinct)));
}

py::tuple statistics(const I32& key, const I64& value, int32_t keys) {
  same_length(key, value);
  in_range(view(key), INT32_MIN, keys, "key");
  auto out =
      unlocked([k = view(key), v = view(value), keys] { return plab::analysis::statistics(k, v, keys); });
  return py::make_tuple(give(std::move(out.total)), give(std::move(out.count)), give(std::move(out.shortest)),
                        give(std::move(out.longest)), give(std::move(out.median)),
                        give(std::move(out.deviation)));
}

py::tuple project(const I64& range_start_ns, const I64& range_end_ns, const I32& range_thread,
                  const I64& call_start_ns, const I64& call_end_ns, const I32& call_thread,
                  const I64& start_ns, const I64& end_ns) {
  same_length(range_start_ns, range_end_ns, range_thread);
  same_length(call_start_ns, call_end_ns, call_thread, start_ns, end_ns);
  const plab::trace::Ranges ranges{view(range_start_ns), view(range_end_ns), view(range_thread)};
  const plab::analysis::Launched launched{
      {view(call_start_ns), view(call_end_ns), view(call_thread)}, view(start_ns), view(end_ns)};
  auto out = unlocked([&] { return plab::analysis::project(ranges, launched); });
  return py::make_tuple(give(std::move(out.first_ns)), give(std::move(out.last_ns)),
                        give(std::move(out.busy_ns)), give(std::move(out.count)));
}

plab::analysis::Dependencies dependencies(const I64& first, const I32& source, const I64& after_ns) {
  same_length(source, after_ns);
  const plab::analysis::Dependencies out{view(first), view(source), view(after_ns)};
  const auto rows = static_cast<int64_t>(out.source.size());
  if (out.first.empty() || out.first.front() != 0 || out.first.back() != rows)
    throw std::invalid_argument("the dependencies of the moments are not all rows");
  for (size_t moment = 0; moment < out.moments(); ++moment) {
    if (out.first[moment] > out.first[moment + 1])
      throw std::invalid_argument("the dependencies of the moments are not in order");
    const auto mine = out.source.subspan(out.first[moment], out.first[moment + 1] - out.first[moment]);
    in_range(mine, 0, static_cast<int64_t>(moment), "a moment depends on one behind it:");
  }
  return out;
}

py::tuple schedule(const I64& first, const I32& source, const I64& after_ns, const I64& late_ns,
                   const I64& given_ns) {
  same_length(late_ns, given_ns);
  const auto graph = dependencies(first, source, after_ns);
  if (graph.moments() != static_cast<size_t>(late_ns.size()))
    throw std::invalid_argument("columns of one table differ in length");
  auto out = unlocked([&, late = view(late_ns), given = view(given_ns)] {
    return plab::analysis::schedule(graph, late, given);
  });
  return py::make_tuple(give(std::move(out.time_ns)), give(std::move(out.decided_by)));
}

py::array_t<int32_t> deciding_chain(const I32& source, const I64& time_ns, const I32& decided_by,
                                    int32_t last, int64_t until_ns) {
  same_length(time_ns, decided_by);
  const auto sources = view(source), deciding = view(decided_by);
  in_range(deciding, -1, static_cast<int64_t>(sources.size()), "dependency");
  in_range(sources, 0, static_cast<int64_t>(deciding.size()), "moment");
  in_range({&last, 1}, 0, static_cast<int64_t>(deciding.size()), "moment");
  return give(unlocked([&, time = view(time_ns)] {
    return plab::analysis::deciding_chain(sources, time, deciding, last, until_ns);
  }));
}

}  // namespace

PYBIND11_MODULE(_analysis, m) {
  m.doc() = "Analyses over the columns of a trace.";
  m.attr("NO_SEQUENCE") = plab::trace::kNoSequence;
  plab::analysis::add_arrow_reader(m);
  plab::analysis::add_chrome_reader(m);
  plab::analysis::add_text_codes(m);
  m.def("merged", &merged);
  m.def("busy_ns", &busy_ns);
  m.def("contain", &contain);
  m.def("call_of", &call_of);
  m.def("link_by_counter", &link_by_counter);
  m.def("link_by_ranges", &link_by_ranges);
  m.def("attribute", &attribute);
  m.def("sum_by_key", &sum_by_key);
  m.def("nearest_marked", &nearest_marked);
  m.def("set_time_ns", &set_time_ns);
  m.def("lane_time_ns", &lane_time_ns);
  m.def("nesting_lanes", &nesting_lanes);
  m.def("period_of", &period_of);
  m.def("gaps_between", &gaps_between);
  m.def("cut_by_winners", &cut_by_winners);
  m.def("numbering", &numbering);
  m.def("statistics", &statistics);
  m.def("project", &project);
  m.def("schedule", &schedule);
  m.def("deciding_chain", &deciding_chain);
}
