// SPDX-License-Identifier: Apache-2.0
#include "recorder/cupti/counter_sampler.h"

#include <dlfcn.h>
#include <unistd.h>

#include <stdexcept>

#include "recorder/system/mapped_library.h"

namespace plab::recorder {
namespace {

constexpr size_t kBufferBytes = size_t{256} << 20;  // of the GPU's samples: 100 ms at 20 us need 200 MB
constexpr cupti::Result kVirtualized = 33;          // CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED

}  // namespace

template <class Params>
cupti::Result CounterSampler::call(cupti::Result (*function)(Params*), Params& params) const {
  params.bytes_of_struct = pm::bytes_of<Params>;
  return function(&params);
}

template <class Params>
void CounterSampler::need(const char* what, cupti::Result (*function)(Params*), Params& params) const {
  const cupti::Result result = call(function, params);
  if (result == cupti::kSuccess) return;
  if (result == cupti::kInsufficientPrivileges)
    throw std::runtime_error(
        "the driver allows hardware counters to the administrator only (ERR_NVGPUCTRPERM): "
        "NVreg_RestrictProfilingToAdminUsers=0 for its kernel module, or CAP_SYS_ADMIN, opens them");
  if (result == kVirtualized) throw std::runtime_error("hardware counters are not open on this virtual GPU");
  const char* text = nullptr;
  result_string_(result, &text);
  throw std::runtime_error(std::string("CUPTI cannot sample hardware counters of this GPU: ") + what + ": " +
                           (text ? text : "unknown error") + " (" + std::to_string(result) + ")");
}

CounterSampler::CounterSampler(const std::string& cupti_path, int device,
                               const std::vector<std::vector<std::string>>& choices, uint64_t period_ns,
                               uint32_t most_samples) {
  const std::string path = cupti_path.empty() ? find_mapped_library("libcupti.so") : cupti_path;
  if (path.empty()) throw std::runtime_error("CUPTI is not loaded in this process");
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(path + " cannot be loaded");
  const auto bind = [&](const char* name) {
    void* const found = dlsym(library, name);
    if (found == nullptr)
      throw std::runtime_error(path + " has no " + name + ": sampled counters take CUPTI 12.6 or newer");
    return found;
  };
#define PLAB_BIND(function, theirs, FIELDS) \
  function##_ = reinterpret_cast<decltype(function##_)>(bind("cupti" #theirs));
  PLAB_PM_FUNCTIONS(PLAB_BIND)
#undef PLAB_BIND
  result_string_ = reinterpret_cast<decltype(result_string_)>(bind("cuptiGetResultString"));

  process_ = getpid();
  pm::initialize_params begin;
  need("ProfilerInitialize", initialize_, begin);
  pm::chip_name_params chip;
  chip.device = static_cast<size_t>(device);
  need("DeviceGetChipName", chip_name_, chip);
  chip_ = chip.name;
  pm::availability_params available;
  available.device = static_cast<size_t>(device);
  need("GetCounterAvailability", availability_, available);
  available_image_.resize(available.bytes);
  available.image = available_image_.data();
  need("GetCounterAvailability", availability_, available);

  for (const std::vector<std::string>& names : choices) {
    chosen_.emplace_back();
    for (const std::string& name : names) {
      std::vector<std::string> tried = used_;
      tried.push_back(name);
      if (!fits(tried)) continue;
      used_ = tried;
      chosen_.back() = name;
      break;
    }
  }
  if (used_.empty())
    throw std::runtime_error("this GPU (" + chip_ + ") samples none of the counters that are read");
  fits(used_);  // once more: the configuration is that of the last try
  for (const std::string& name : used_) names_.push_back(name.c_str());

  pm::enable_params enable;
  enable.device = static_cast<size_t>(device);
  need("PmSamplingEnable", enable_, enable);
  sampling_ = enable.sampling;
  pm::set_config_params config;
  config.sampling = sampling_;
  config.bytes = config_image_.size(), config.image = config_image_.data();
  config.buffer_bytes = kBufferBytes;
  config.interval = period_ns;
  config.trigger = pm::kEveryTime, config.append = pm::kKeepOldest;
  pm::data_size_params size;
  size.sampling = sampling_;
  size.names = names_.data(), size.count = names_.size();
  size.most_samples = most_samples;
  pm::start_params start;
  start.sampling = sampling_;
  try {
    need("PmSamplingSetConfig", set_config_, config);
    need("PmSamplingGetCounterDataSize", data_size_, size);
    data_.resize(size.bytes);
    pm::data_begin_params image;
    image.sampling = sampling_;
    image.bytes = data_.size(), image.image = data_.data();
    need("PmSamplingCounterDataImageInitialize", data_begin_, image);
    need("PmSamplingStart", start_, start);
  } catch (...) {
    stop();
    throw;
  }
  running_ = true;
}

CounterSampler::~CounterSampler() {
  if (is_a_fork()) return;
  stop();
  if (sampling_ != nullptr) {
    pm::disable_params end;
    end.sampling = sampling_;
    call(disable_, end);
  }
  if (host_ != nullptr) {
    pm::host_end_params end;
    end.host = host_;
    call(host_end_, end);
  }
}

// Whether the GPU collects these at once; the configuration for them is kept then.
bool CounterSampler::fits(const std::vector<std::string>& names) {
  pm::host_begin_params begin;
  begin.profiler = pm::kProfilerPmSampling;
  begin.chip = chip_.c_str();
  begin.available = available_image_.data();
  need("ProfilerHostInitialize", host_begin_, begin);
  const auto end = [&](void* host) {
    pm::host_end_params params;
    params.host = host;
    call(host_end_, params);
  };
  std::vector<const char*> texts;
  for (const std::string& name : names) texts.push_back(name.c_str());
  pm::add_metrics_params add;
  add.host = begin.host;
  add.names = texts.data(), add.count = texts.size();
  pm::config_size_params size;
  size.host = begin.host;
  pm::config_params config;
  config.host = begin.host;
  std::vector<uint8_t> image;
  bool good = call(add_metrics_, add) == cupti::kSuccess && call(config_size_, size) == cupti::kSuccess;
  if (good) {
    image.resize(size.bytes);
    config.bytes = image.size(), config.image = image.data();
    pm::passes_params passes;
    passes.bytes = image.size(), passes.image = image.data();
    good = call(config_, config) == cupti::kSuccess && call(passes_, passes) == cupti::kSuccess &&
           passes.passes == 1;
  }
  if (!good) {
    end(begin.host);
    return false;
  }
  if (host_ != nullptr) end(host_);
  host_ = begin.host;
  config_image_ = std::move(image);
  return true;
}

bool CounterSampler::is_a_fork() const noexcept { return getpid() != process_; }

CounterSampler::Samples CounterSampler::take() {
  Samples samples;
  if (sampling_ == nullptr || is_a_fork()) return samples;
  for (bool more = true; more;) decode_into(&samples, &more);
  return samples;
}

void CounterSampler::decode_into(Samples* samples, bool* more) {
  pm::decode_params decoded;
  decoded.sampling = sampling_;
  decoded.image = data_.data(), decoded.bytes = data_.size();
  const cupti::Result result = call(decode_, decoded);
  if (result != cupti::kSuccess || decoded.overflow != 0) ++overflows_;
  pm::data_info_params info;
  info.image = data_.data(), info.bytes = data_.size();
  if (call(data_info_, info) != cupti::kSuccess) info.completed = 0;
  std::vector<double> values(names_.size());
  for (size_t i = 0; i < info.completed; ++i) {
    pm::sample_info_params at;
    at.sampling = sampling_;
    at.image = data_.data(), at.bytes = data_.size();
    at.index = i;
    pm::evaluate_params value;
    value.host = host_;
    value.image = data_.data(), value.bytes = data_.size();
    value.index = i;
    value.names = names_.data(), value.count = names_.size();
    value.values = values.data();
    if (call(sample_info_, at) != cupti::kSuccess || call(evaluate_, value) != cupti::kSuccess) continue;
    samples->start_ns.push_back(static_cast<int64_t>(at.start_ns));
    samples->end_ns.push_back(static_cast<int64_t>(at.end_ns));
    samples->values.insert(samples->values.end(), values.begin(), values.end());
  }
  pm::data_begin_params fresh;
  fresh.sampling = sampling_;
  fresh.bytes = data_.size(), fresh.image = data_.data();
  call(data_begin_, fresh);
  *more = result == cupti::kSuccess && decoded.stopped == pm::kImageIsFull && info.completed > 0;
}

void CounterSampler::stop() noexcept {
  if (!running_ || is_a_fork()) return;
  running_ = false;
  pm::stop_params end;
  end.sampling = sampling_;
  call(stop_, end);
}

}  // namespace plab::recorder
