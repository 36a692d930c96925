# SPDX-License-Identifier: Apache-2.0
# plab_export_only(target symbol...): the symbols that a compiled part shows to the process, and no others.
#
# Every part shares one process with libtorch and with whatever else the user imports. A C++ library inside of us,
# be it inlined templates or all of a static libstdc++, must neither be found by others nor find theirs: unique
# symbols (std::locale::id) of two versions bound to one another have crashed. So each part has a version script.
#
# libstdc++ itself is linked as the compiler does by default, which is shared almost everywhere: libtorch has brought
# that library into the process anyway. Where a compiler links it statically, nothing of it is visible; exceptions
# that leave _ops through libtorch still match, because libstdc++ compares types by name.
function(plab_export_only target)
  list(JOIN ARGN "; " _symbols)
  set(_map "${CMAKE_CURRENT_BINARY_DIR}/${target}.map")
  file(CONFIGURE OUTPUT "${_map}" CONTENT "{ global: @_symbols@; local: *; };\n" @ONLY)
  target_link_options(${target} PRIVATE "-Wl,--version-script=${_map}" -Wl,--exclude-libs,ALL)
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${_map}")
endfunction()
