// SPDX-License-Identifier: Apache-2.0
// PM sampling of a GPU whose counters rise evenly: a test says since when, and how often a sample is made.
// Included into fake_cupti.cpp.
#pragma once

#include <cmath>

#include "recorder/cupti/pm_sampling.h"

namespace pm_fake {

namespace pm = plab::recorder::pm;

struct State {
  std::vector<std::string> used;
  uint64_t period_ns = 0;
  int64_t begun_ns = 0, given_ns = 0;  // samples up to here were decoded
  std::vector<std::pair<int64_t, int64_t>> image;
  uint32_t most = 0;
  bool running = false;
};
inline State state;

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// What a nanosecond adds to each counter; a counter without a rate is unknown to this GPU.
inline const std::map<std::string, double> kRates = {
    {"dram__bytes_read.sum", 2000.0},
    {"dram__bytes_write.sum", 500.0},
    {"sm__cycles_active.avg.pct_of_peak_sustained_elapsed", 75.0},
    {"TPC.TriageCompute.sm__pipe_tensor_cycles_active_realtime.avg.pct_of_peak_sustained_elapsed", 40.0},
    {"pcie__read_bytes.sum", 1.0},
};

inline bool is_share(const std::string& name) { return name.find("pct_of_peak") != std::string::npos; }

}  // namespace pm_fake

extern "C" {

PLAB_FAKE Result cuptiProfilerInitialize(pm_fake::pm::initialize_params*) {
  ENTER(ProfilerInitialize)
  return kSuccess;
}
PLAB_FAKE Result cuptiDeviceGetChipName(pm_fake::pm::chip_name_params* p) {
  p->name = "FAKE100";
  return kSuccess;
}
PLAB_FAKE Result cuptiPmSamplingGetCounterAvailability(pm_fake::pm::availability_params* p) {
  ENTER(PmSamplingGetCounterAvailability)
  p->bytes = 16;
  return kSuccess;
}
PLAB_FAKE Result cuptiProfilerHostInitialize(pm_fake::pm::host_begin_params* p) {
  p->host = new std::vector<std::string>;
  return kSuccess;
}
PLAB_FAKE Result cuptiProfilerHostDeinitialize(pm_fake::pm::host_end_params* p) {
  delete static_cast<std::vector<std::string>*>(p->host);
  return kSuccess;
}
PLAB_FAKE Result cuptiProfilerHostConfigAddMetrics(pm_fake::pm::add_metrics_params* p) {
  for (size_t i = 0; i < p->count; ++i) {
    if (!pm_fake::kRates.count(p->names[i])) return 1;
    static_cast<std::vector<std::string>*>(p->host)->push_back(p->names[i]);
  }
  return kSuccess;
}
PLAB_FAKE Result cuptiProfilerHostGetConfigImageSize(pm_fake::pm::config_size_params* p) {
  p->bytes = 1;
  return kSuccess;
}
// One byte: how many passes. PCIe does not fit with the others.
PLAB_FAKE Result cuptiProfilerHostGetConfigImage(pm_fake::pm::config_params* p) {
  const auto& names = *static_cast<std::vector<std::string>*>(p->host);
  const bool has_pcie = !names.empty() && names.back().starts_with("pcie");
  *p->image = has_pcie && names.size() > 1 ? 2 : 1;
  return kSuccess;
}
PLAB_FAKE Result cuptiProfilerHostGetNumOfPasses(pm_fake::pm::passes_params* p) {
  p->passes = *p->image;
  return kSuccess;
}
PLAB_FAKE Result cuptiPmSamplingEnable(pm_fake::pm::enable_params* p) {
  ENTER(PmSamplingEnable)
  p->sampling = &pm_fake::state;
  return kSuccess;
}
PLAB_FAKE Result cuptiPmSamplingSetConfig(pm_fake::pm::set_config_params* p) {
  pm_fake::state.period_ns = p->interval;
  return kSuccess;
}
PLAB_FAKE Result cuptiPmSamplingGetCounterDataSize(pm_fake::pm::data_size_params* p) {
  pm_fake::state.used.assign(p->names, p->names + p->count);
  pm_fake::state.most = p->most_samples;
  p->bytes = 64;
  return kSuccess;
}
PLAB_FAKE Result cuptiPmSamplingCounterDataImageInitialize(pm_fake::pm::data_begin_params*) {
  pm_fake::state.image.clear();
  return kSuccess;
}
PLAB_FAKE Result cuptiPmSamplingStart(pm_fake::pm::start_params*) {
  ENTER(PmSamplingStart)
  pm_fake::state.begun_ns = pm_fake::state.given_ns = pm_fake::now_ns();
  pm_fake::state.running = true;
  return kSuccess;
}
PLAB_FAKE Result cuptiPmSamplingStop(pm_fake::pm::stop_params*) {
  pm_fake::state.running = false;
  return kSuccess;
}
PLAB_FAKE Result cuptiPmSamplingDisable(pm_fake::pm::disable_params*) { return kSuccess; }
PLAB_FAKE Result cuptiPmSamplingDecodeData(pm_fake::pm::decode_params* p) {
  ENTER(PmSamplingDecodeData)
  auto& s = pm_fake::state;
  const int64_t period = static_cast<int64_t>(s.period_ns), now = pm_fake::now_ns();
  while (s.given_ns + period <= now && s.image.size() < s.most) {
    // The first sample begins long before the sampling, as on an H200.
    s.image.emplace_back(s.given_ns == s.begun_ns ? s.begun_ns - 1'000'000'000 : s.given_ns,
                         s.given_ns + period);
    s.given_ns += period;
  }
  p->stopped = s.image.size() == s.most ? pm_fake::pm::kImageIsFull : 2;
  p->overflow = 0;
  return kSuccess;
}
PLAB_FAKE Result cuptiPmSamplingGetCounterDataInfo(pm_fake::pm::data_info_params* p) {
  p->total = pm_fake::state.most;
  p->populated = p->completed = pm_fake::state.image.size();
  return kSuccess;
}
PLAB_FAKE Result cuptiPmSamplingCounterDataGetSampleInfo(pm_fake::pm::sample_info_params* p) {
  const auto [begin, end] = pm_fake::state.image[p->index];
  p->start_ns = static_cast<uint64_t>(begin), p->end_ns = static_cast<uint64_t>(end);
  return kSuccess;
}
PLAB_FAKE Result cuptiProfilerHostEvaluateToGpuValues(pm_fake::pm::evaluate_params* p) {
  const auto [begin, end] = pm_fake::state.image[p->index];
  for (size_t i = 0; i < p->count; ++i) {
    const double rate = pm_fake::kRates.at(p->names[i]);
    p->values[i] = pm_fake::is_share(p->names[i]) ? rate : rate * static_cast<double>(end - begin);
  }
  return kSuccess;
}

}  // extern "C"
