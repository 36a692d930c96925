// SPDX-License-Identifier: Apache-2.0
// What a program names through NVTX: domains, strings, categories, threads, resources, layouts of payloads.
//
// Names are kept whether a recording runs or not, and written to every recording, because a library names its
// objects once, at its first use. Handles live as long as the process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "recorder/spool/writer.h"

namespace plab::recorder::nvtx_names {

struct Domain {
  uint32_t id;
  std::string name;
};
struct RegisteredString {
  std::string text;
};
struct Resource {
  spool::Resource facts;
  std::string name;
};

// All on any thread; texts are UTF-8.
const Domain* create_domain(std::string text);
const RegisteredString* register_string(std::string text);
const Resource* name_resource(uint32_t domain, uint32_t type, uint64_t identifier, std::string text);
void name_category(uint32_t domain, uint32_t category, std::string text);
void name_thread(uint32_t thread, std::string text);

struct SchemaEntry {
  spool::SchemaEntry facts;
  std::string name, description;
};
struct Schema {
  spool::Schema facts;
  std::string name;
  std::vector<SchemaEntry> entries;
};
// Returns the schema's id: its own, or a new one if that is 0.
uint64_t register_schema(Schema schema);
// A copy: other threads may register meanwhile.
std::optional<Schema> find_schema(uint32_t domain, uint64_t id);

void before_fork() noexcept;
void after_fork_parent() noexcept;
void after_fork_child() noexcept;

// Thread: the consumer. A recording begins: no name is written yet.
void start() noexcept;
// Thread: the consumer. What it has not been told yet.
void write_new(spool::Writer& writer);
// All of them: the later name of a thread counts, and the system's has been written meanwhile.
void write_threads_again(spool::Writer& writer);

}  // namespace plab::recorder::nvtx_names
