# SPDX-License-Identifier: Apache-2.0
# Where a compiled part goes: into the wheel, and for developers into the source tree beside the Python files.
function(plab_install target)
  install(TARGETS ${target} LIBRARY DESTINATION profiling_lab COMPONENT ${target})
  if(PROFILING_LAB_INPLACE)
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${PROJECT_SOURCE_DIR}/profiling_lab")
  endif()
endfunction()
