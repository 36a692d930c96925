// SPDX-License-Identifier: Apache-2.0
// Hardware counters of one GPU, sampled at even times without replay: CUPTI's PM sampling.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recorder/cupti/pm_sampling.h"

namespace plab::recorder {

class CounterSampler {
 public:
  // `choices`: per quantity the names of its metric, in the order of preference. The first that this GPU has and that
  // fits into the one pass with those before it is taken; without any, the quantity is left out.
  // Throws std::runtime_error with one sentence if this GPU or driver does not sample.
  // cupti_path: "" is the copy that this process uses already.
  CounterSampler(const std::string& cupti_path, int device,
                 const std::vector<std::vector<std::string>>& choices, uint64_t period_ns,
                 uint32_t most_samples);
  ~CounterSampler();
  CounterSampler(const CounterSampler&) = delete;
  CounterSampler& operator=(const CounterSampler&) = delete;

  // The metric of each choice; "" for one that is left out.
  const std::vector<std::string>& metrics() const { return chosen_; }

  struct Samples {
    std::vector<int64_t> start_ns, end_ns;  // on the clock of CUPTI's activity records
    std::vector<double> values;             // sample by sample, one for each metric that is not left out
  };
  // Since the last call. The samples that the GPU could not keep are counted.
  Samples take();
  uint64_t overflows() const { return overflows_; }
  // Ends the sampling; take() gives the rest. May be called twice.
  void stop() noexcept;

 private:
  template <class Params>
  cupti::Result call(cupti::Result (*function)(Params*), Params& params) const;
  template <class Params>
  void need(const char* what, cupti::Result (*function)(Params*), Params& params) const;
  bool is_a_fork() const noexcept;
  bool fits(const std::vector<std::string>& names);
  void decode_into(Samples* samples, bool* more);

#define PLAB_POINTER(function, theirs, FIELDS) cupti::Result (*function##_)(pm::function##_params*) = nullptr;
  PLAB_PM_FUNCTIONS(PLAB_POINTER)
#undef PLAB_POINTER
  cupti::Result (*result_string_)(cupti::Result, const char**) = nullptr;

  void* host_ = nullptr;
  void* sampling_ = nullptr;
  std::string chip_;
  std::vector<uint8_t> available_image_, config_image_, data_;
  std::vector<std::string> chosen_, used_;
  std::vector<const char*> names_;  // of used_
  uint64_t overflows_ = 0;
  bool running_ = false;
  int process_ = 0;  // a fork has this object, but no CUDA: there nothing is called
};

}  // namespace plab::recorder
