// SPDX-License-Identifier: Apache-2.0
#include "recorder/system/mapped_library.h"

#include <link.h>

#include <cstring>

namespace plab::recorder {
namespace {

struct Search {
  const char* prefix;
  std::string found;
};

int visit(dl_phdr_info* info, size_t, void* data) {
  auto* search = static_cast<Search*>(data);
  const char* name = info->dlpi_name ? info->dlpi_name : "";
  const char* slash = std::strrchr(name, '/');
  if (std::strncmp(slash ? slash + 1 : name, search->prefix, std::strlen(search->prefix)) != 0) return 0;
  search->found = name;
  return 1;
}

}  // namespace

std::string find_mapped_library(const char* prefix) {
  Search search{prefix, ""};
  dl_iterate_phdr(visit, &search);
  return search.found;
}

}  // namespace plab::recorder
