// SPDX-License-Identifier: Apache-2.0
// The part of CUPTI's PM sampling (CUDA 12.6 and newer) that the recorder uses, declared as in cupti/abi.h: so that
// building needs no CUPTI header. cupti/pm_sampling_conformance.cpp checks it where the headers are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "recorder/cupti/abi.h"

namespace plab::recorder::pm {

using cupti::Result;

inline constexpr int kProfilerPmSampling = 1;
inline constexpr int kEveryTime = 1;    // a sample at even times, in nanoseconds
inline constexpr int kKeepOldest = 0;   // of samples, where the buffer of the GPU is full
inline constexpr int kImageIsFull = 1;  // why decoding stopped: more samples wait

// F(type, name, CUPTI's name); every structure begins with its size and a null pointer.
#define PLAB_PM_INITIALIZE(F)
#define PLAB_PM_CHIP_NAME(F)     \
  F(size_t, device, deviceIndex) \
  F(const char*, name, pChipName)
#define PLAB_PM_AVAILABILITY(F)                  \
  F(size_t, device, deviceIndex)                 \
  F(size_t, bytes, counterAvailabilityImageSize) \
  F(uint8_t*, image, pCounterAvailabilityImage)
#define PLAB_PM_HOST(F)                                   \
  F(int, profiler, profilerType)                          \
  F(const char*, chip, pChipName)                         \
  F(const uint8_t*, available, pCounterAvailabilityImage) \
  F(void*, host, pHostObject)
#define PLAB_PM_HOST_END(F) F(void*, host, pHostObject)
#define PLAB_PM_ADD_METRICS(F)          \
  F(void*, host, pHostObject)           \
  F(const char**, names, ppMetricNames) \
  F(size_t, count, numMetrics)
#define PLAB_PM_CONFIG_SIZE(F) \
  F(void*, host, pHostObject)  \
  F(size_t, bytes, configImageSize)
#define PLAB_PM_CONFIG(F)           \
  F(void*, host, pHostObject)       \
  F(size_t, bytes, configImageSize) \
  F(uint8_t*, image, pConfigImage)
#define PLAB_PM_PASSES(F)           \
  F(size_t, bytes, configImageSize) \
  F(uint8_t*, image, pConfigImage)  \
  F(size_t, passes, numOfPasses)
#define PLAB_PM_ENABLE(F)        \
  F(size_t, device, deviceIndex) \
  F(void*, sampling, pPmSamplingObject)
#define PLAB_PM_SET_CONFIG(F)                 \
  F(void*, sampling, pPmSamplingObject)       \
  F(size_t, bytes, configSize)                \
  F(const uint8_t*, image, pConfig)           \
  F(size_t, buffer_bytes, hardwareBufferSize) \
  F(uint64_t, interval, samplingInterval)     \
  F(int, trigger, triggerMode)                \
  F(int, append, hwBufferAppendMode)
#define PLAB_PM_OBJECT(F) F(void*, sampling, pPmSamplingObject)
#define PLAB_PM_DATA_SIZE(F)            \
  F(void*, sampling, pPmSamplingObject) \
  F(const char**, names, pMetricNames)  \
  F(size_t, count, numMetrics)          \
  F(uint32_t, most_samples, maxSamples) \
  F(size_t, bytes, counterDataSize)
#define PLAB_PM_DATA_BEGIN(F)           \
  F(void*, sampling, pPmSamplingObject) \
  F(size_t, bytes, counterDataSize)     \
  F(uint8_t*, image, pCounterData)
#define PLAB_PM_DECODE(F)                \
  F(void*, sampling, pPmSamplingObject)  \
  F(uint8_t*, image, pCounterDataImage)  \
  F(size_t, bytes, counterDataImageSize) \
  F(int, stopped, decodeStopReason)      \
  F(uint8_t, overflow, overflow)
#define PLAB_PM_DATA_INFO(F)                  \
  F(const uint8_t*, image, pCounterDataImage) \
  F(size_t, bytes, counterDataImageSize)      \
  F(size_t, total, numTotalSamples)           \
  F(size_t, populated, numPopulatedSamples)   \
  F(size_t, completed, numCompletedSamples)
#define PLAB_PM_SAMPLE_INFO(F)                \
  F(void*, sampling, pPmSamplingObject)       \
  F(const uint8_t*, image, pCounterDataImage) \
  F(size_t, bytes, counterDataImageSize)      \
  F(size_t, index, sampleIndex)               \
  F(uint64_t, start_ns, startTimestamp)       \
  F(uint64_t, end_ns, endTimestamp)
#define PLAB_PM_EVALUATE(F)                   \
  F(void*, host, pHostObject)                 \
  F(const uint8_t*, image, pCounterDataImage) \
  F(size_t, bytes, counterDataImageSize)      \
  F(size_t, index, rangeIndex)                \
  F(const char**, names, ppMetricNames)       \
  F(size_t, count, numMetrics)                \
  F(double*, values, pMetricValues)

// X(function, CUPTI's function without "cupti", fields)
#define PLAB_PM_FUNCTIONS(X)                                              \
  X(initialize, ProfilerInitialize, PLAB_PM_INITIALIZE)                   \
  X(chip_name, DeviceGetChipName, PLAB_PM_CHIP_NAME)                      \
  X(availability, PmSamplingGetCounterAvailability, PLAB_PM_AVAILABILITY) \
  X(host_begin, ProfilerHostInitialize, PLAB_PM_HOST)                     \
  X(host_end, ProfilerHostDeinitialize, PLAB_PM_HOST_END)                 \
  X(add_metrics, ProfilerHostConfigAddMetrics, PLAB_PM_ADD_METRICS)       \
  X(config_size, ProfilerHostGetConfigImageSize, PLAB_PM_CONFIG_SIZE)     \
  X(config, ProfilerHostGetConfigImage, PLAB_PM_CONFIG)                   \
  X(passes, ProfilerHostGetNumOfPasses, PLAB_PM_PASSES)                   \
  X(enable, PmSamplingEnable, PLAB_PM_ENABLE)                             \
  X(set_config, PmSamplingSetConfig, PLAB_PM_SET_CONFIG)                  \
  X(data_size, PmSamplingGetCounterDataSize, PLAB_PM_DATA_SIZE)           \
  X(data_begin, PmSamplingCounterDataImageInitialize, PLAB_PM_DATA_BEGIN) \
  X(start, PmSamplingStart, PLAB_PM_OBJECT)                               \
  X(stop, PmSamplingStop, PLAB_PM_OBJECT)                                 \
  X(disable, PmSamplingDisable, PLAB_PM_OBJECT)                           \
  X(decode, PmSamplingDecodeData, PLAB_PM_DECODE)                         \
  X(data_info, PmSamplingGetCounterDataInfo, PLAB_PM_DATA_INFO)           \
  X(sample_info, PmSamplingCounterDataGetSampleInfo, PLAB_PM_SAMPLE_INFO) \
  X(evaluate, ProfilerHostEvaluateToGpuValues, PLAB_PM_EVALUATE)

#define PLAB_MEMBER(type, name, theirs) type name{};
#define PLAB_STRUCT(function, theirs, FIELDS) \
  struct function##_params {                  \
    size_t bytes_of_struct = 0;               \
    void* reserved = nullptr;                 \
    FIELDS(PLAB_MEMBER)                       \
  };
PLAB_PM_FUNCTIONS(PLAB_STRUCT)

// Up to the end of the last field, without padding: what CUPTI wants to be told.
template <class Params>
inline constexpr size_t bytes_of = 0;
#define PLAB_END(type, name, theirs) end = offsetof(Params, name) + sizeof(type);
#define PLAB_BYTES(function, theirs, FIELDS)                 \
  template <>                                                \
  inline constexpr size_t bytes_of<function##_params> = [] { \
    using Params [[maybe_unused]] = function##_params;       \
    size_t end = 2 * sizeof(void*);                          \
    FIELDS(PLAB_END)                                         \
    return end;                                              \
  }();
PLAB_PM_FUNCTIONS(PLAB_BYTES)
#undef PLAB_BYTES
#undef PLAB_END
#undef PLAB_STRUCT
#undef PLAB_MEMBER

}  // namespace plab::recorder::pm
