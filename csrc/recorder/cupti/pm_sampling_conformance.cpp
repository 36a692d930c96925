// SPDX-License-Identifier: Apache-2.0
// As conformance.cpp: compiled only where CUPTI's headers are, and fails if our declarations do not match.
#include <cupti.h>

#if CUPTI_API_VERSION >= 130000 && CUPTI_API_VERSION < 130200

#include <cupti_pmsampling.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_target.h>

#include <utility>

#include "recorder/cupti/pm_sampling.h"

namespace plab::recorder::pm {
namespace {

static_assert(kProfilerPmSampling == CUPTI_PROFILER_TYPE_PM_SAMPLING);
static_assert(kEveryTime == CUPTI_PM_SAMPLING_TRIGGER_MODE_GPU_TIME_INTERVAL);
static_assert(kKeepOldest == CUPTI_PM_SAMPLING_HARDWARE_BUFFER_APPEND_MODE_KEEP_OLDEST);
static_assert(kImageIsFull == CUPTI_PM_SAMPLING_DECODE_STOP_REASON_COUNTER_DATA_FULL);

#define SAME_FIELD(type, name, theirs)                              \
  static_assert(offsetof(Ours, name) == offsetof(Theirs, theirs) && \
                sizeof(Ours::name) == sizeof(std::declval<Theirs>().theirs));
#define SAME(function, Prefix, FIELDS)                                                                      \
  namespace function##_layout {                                                                             \
    using Ours = function##_params;                                                                         \
    using Theirs = CUpti_##Prefix##_Params;                                                                 \
    static_assert(bytes_of<Ours> == CUpti_##Prefix##_Params_STRUCT_SIZE && sizeof(Ours) == sizeof(Theirs)); \
    FIELDS(SAME_FIELD)                                                                                      \
  }
SAME(initialize, Profiler_Initialize, PLAB_PM_INITIALIZE)
SAME(chip_name, Device_GetChipName, PLAB_PM_CHIP_NAME)
SAME(availability, PmSampling_GetCounterAvailability, PLAB_PM_AVAILABILITY)
SAME(host_begin, Profiler_Host_Initialize, PLAB_PM_HOST)
SAME(host_end, Profiler_Host_Deinitialize, PLAB_PM_HOST_END)
SAME(add_metrics, Profiler_Host_ConfigAddMetrics, PLAB_PM_ADD_METRICS)
SAME(config_size, Profiler_Host_GetConfigImageSize, PLAB_PM_CONFIG_SIZE)
SAME(config, Profiler_Host_GetConfigImage, PLAB_PM_CONFIG)
SAME(passes, Profiler_Host_GetNumOfPasses, PLAB_PM_PASSES)
SAME(enable, PmSampling_Enable, PLAB_PM_ENABLE)
SAME(set_config, PmSampling_SetConfig, PLAB_PM_SET_CONFIG)
SAME(data_size, PmSampling_GetCounterDataSize, PLAB_PM_DATA_SIZE)
SAME(data_begin, PmSampling_CounterDataImage_Initialize, PLAB_PM_DATA_BEGIN)
SAME(start, PmSampling_Start, PLAB_PM_OBJECT)
SAME(stop, PmSampling_Stop, PLAB_PM_OBJECT)
SAME(disable, PmSampling_Disable, PLAB_PM_OBJECT)
SAME(decode, PmSampling_DecodeData, PLAB_PM_DECODE)
SAME(data_info, PmSampling_GetCounterDataInfo, PLAB_PM_DATA_INFO)
SAME(sample_info, PmSampling_CounterData_GetSampleInfo, PLAB_PM_SAMPLE_INFO)
SAME(evaluate, Profiler_Host_EvaluateToGpuValues, PLAB_PM_EVALUATE)

}  // namespace
}  // namespace plab::recorder::pm

#endif
