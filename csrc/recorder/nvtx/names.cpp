// SPDX-License-Identifier: Apache-2.0
#include "recorder/nvtx/names.h"

#include <atomic>
#include <deque>
#include <mutex>
#include <new>
#include <utility>

#include "recorder/system/fork_safe_mutex.h"

namespace plab::recorder::nvtx_names {
namespace {

constexpr uint32_t kFirstDomain = 2;  // 0 is NVTX's default, 1 the one that Python stacks are written under
constexpr uint64_t kFirstSchema = (uint64_t{1} << 32) + 256;  // below are those of the stacks

// A domain or a category: it stands among the ranges, without a time.
struct Label {
  spool::RangeType type;
  uint32_t domain, category;
  std::string text;
};

struct Names {
  ForkSafeMutex mutex;
  std::deque<Domain> domains;  // deques: handles are addresses
  std::deque<RegisteredString> strings;
  std::deque<Resource> resources;
  std::vector<Label> labels;
  std::vector<std::pair<uint32_t, std::string>> threads;
  std::vector<Schema> schemas;
};
// Never destroyed: NVTX calls come until the very end.
std::atomic<Names*> known{new Names};
std::atomic<uint32_t> next_domain{kFirstDomain};
Names& names() { return *known.load(std::memory_order_acquire); }

uint32_t text_id(spool::Writer& writer, const std::string& text) {
  return text.empty() ? spool::kNone : writer.intern(text);
}

// How many names of each kind are written so far; used by the consumer.
struct Told {
  size_t labels = 0, threads = 0, resources = 0, schemas = 0;
};
Told told;

template <class All>
auto rest_of(const All& all, size_t first) {
  return std::vector<typename All::value_type>(all.begin() + static_cast<ptrdiff_t>(first), all.end());
}

void write_labels(spool::Writer& writer, const std::vector<Label>& labels) {
  std::vector<spool::Range> rows;
  for (const Label& label : labels) {
    spool::Range& row = rows.emplace_back();
    row.type = static_cast<uint32_t>(label.type);
    row.domain = label.domain;
    row.category = label.category;
    row.text = text_id(writer, label.text);
    row.color = row.data = spool::kNone;
  }
  writer.append(rows);
}

void write_threads(spool::Writer& writer, const std::vector<std::pair<uint32_t, std::string>>& threads) {
  std::vector<spool::Thread> rows;
  for (const auto& [thread, text] : threads) rows.push_back({thread, writer.intern(text)});
  writer.append(rows);
}

void write_schemas(spool::Writer& writer, const std::vector<Schema>& given) {
  std::vector<spool::Schema> schemas;
  std::vector<spool::SchemaEntry> entries;
  for (const Schema& schema : given) {
    schemas.push_back(schema.facts);
    schemas.back().name = text_id(writer, schema.name);
    for (const SchemaEntry& entry : schema.entries) {
      entries.push_back(entry.facts);
      entries.back().name = text_id(writer, entry.name);
      entries.back().description = text_id(writer, entry.description);
    }
  }
  writer.append(schemas);
  writer.append(entries);
}

void write_resources(spool::Writer& writer, const std::vector<Resource>& given) {
  std::vector<spool::Resource> rows;
  for (const Resource& resource : given) {
    rows.push_back(resource.facts);
    rows.back().name = text_id(writer, resource.name);
  }
  writer.append(rows);
}

}  // namespace

const Domain* create_domain(std::string text) {
  Names& all = names();
  std::lock_guard lock(all.mutex);
  const uint32_t id = next_domain.fetch_add(1);
  const Domain& domain = all.domains.emplace_back(Domain{id, std::move(text)});
  all.labels.push_back({spool::RangeType::kDomain, id, spool::kNone, domain.name});
  return &domain;
}

const RegisteredString* register_string(std::string text) {
  Names& all = names();
  std::lock_guard lock(all.mutex);
  return &all.strings.emplace_back(RegisteredString{std::move(text)});
}

const Resource* name_resource(uint32_t domain, uint32_t type, uint64_t identifier, std::string text) {
  Names& all = names();
  std::lock_guard lock(all.mutex);
  return &all.resources.emplace_back(Resource{{identifier, type, domain, 0, 0}, std::move(text)});
}

void name_category(uint32_t domain, uint32_t category, std::string text) {
  Names& all = names();
  std::lock_guard lock(all.mutex);
  all.labels.push_back({spool::RangeType::kCategory, domain, category, std::move(text)});
}

void name_thread(uint32_t thread, std::string text) {
  Names& all = names();
  std::lock_guard lock(all.mutex);
  all.threads.emplace_back(thread, std::move(text));
}

uint64_t register_schema(Schema schema) {
  Names& all = names();
  std::lock_guard lock(all.mutex);
  if (!schema.facts.id) schema.facts.id = kFirstSchema + all.schemas.size();
  for (SchemaEntry& entry : schema.entries) {
    entry.facts.schema = schema.facts.id;
    entry.facts.domain = schema.facts.domain;
  }
  all.schemas.push_back(std::move(schema));
  return all.schemas.back().facts.id;
}

std::optional<Schema> find_schema(uint32_t domain, uint64_t id) {
  Names& all = names();
  std::lock_guard lock(all.mutex);
  for (const Schema& schema : all.schemas) {
    if (schema.facts.id == id && schema.facts.domain == domain) return schema;
  }
  return {};
}

void before_fork() noexcept { names().mutex.before_fork(); }
void after_fork_parent() noexcept { names().mutex.after_fork_parent(); }
// Handles that the child has stay what they are; only its own recordings would miss older names.
void after_fork_child() noexcept {
  if (names().mutex.after_fork_child()) return;
  if (auto* fresh = new (std::nothrow) Names) known = fresh;
}

void start() noexcept { told = {}; }

// The names are copied under the lock and written without it: a thread that sets a name must not wait for a disk.
void write_new(spool::Writer& writer) {
  std::vector<Label> labels;
  std::vector<std::pair<uint32_t, std::string>> threads;
  std::vector<Resource> resources;
  std::vector<Schema> schemas;
  {
    Names& all = names();
    std::lock_guard lock(all.mutex);
    labels = rest_of(all.labels, told.labels);
    threads = rest_of(all.threads, told.threads);
    resources = rest_of(all.resources, told.resources);
    schemas = rest_of(all.schemas, told.schemas);
  }
  write_labels(writer, labels);
  told.labels += labels.size();
  write_schemas(writer, schemas);
  told.schemas += schemas.size();
  write_threads(writer, threads);
  told.threads += threads.size();
  write_resources(writer, resources);
  told.resources += resources.size();
}

void write_threads_again(spool::Writer& writer) {
  std::vector<std::pair<uint32_t, std::string>> threads;
  {
    Names& all = names();
    std::lock_guard lock(all.mutex);
    threads = all.threads;
  }
  write_threads(writer, threads);
}

}  // namespace plab::recorder::nvtx_names
