// SPDX-License-Identifier: Apache-2.0
#include "recorder/nvtx_names.h"

#include <deque>
#include <mutex>
#include <utility>

namespace plab::recorder::nvtx_names {
namespace {

namespace spool = trace::spool;

constexpr uint32_t kFirstDomain = 2;  // 0 is NVTX's default, 1 the one that Python stacks are written under
constexpr uint64_t kFirstSchema = (uint64_t{1} << 32) + 256;  // below are those of the stacks

// A domain or a category: it stands among the ranges, without a time.
struct Label {
  spool::RangeType type;
  uint32_t domain, category;
  std::string text;
};

struct Names {
  std::mutex mutex;
  std::deque<Domain> domains;  // deques: handles are addresses
  std::deque<RegisteredString> strings;
  std::deque<Resource> resources;
  std::vector<Label> labels;
  std::vector<std::pair<uint32_t, std::string>> threads;
  std::vector<Schema> schemas;
  size_t labels_told = 0, threads_told = 0, resources_told = 0, schemas_told = 0;
};
Names& names() {
  static auto* const all = new Names;  // never destroyed: NVTX calls come until the very end
  return *all;
}

uint32_t text_id(spool::Writer& writer, const std::string& text) {
  return text.empty() ? spool::kNone : writer.intern(text);
}

void write_labels(spool::Writer& writer, Names& all) {
  std::vector<spool::Range> rows;
  for (; all.labels_told < all.labels.size(); ++all.labels_told) {
    const Label& label = all.labels[all.labels_told];
    spool::Range& row = rows.emplace_back();
    row.type = static_cast<uint32_t>(label.type);
    row.domain = label.domain;
    row.category = label.category;
    row.text = text_id(writer, label.text);
    row.color = row.data = spool::kNone;
  }
  writer.append(spool::Kind::kRange, rows);
}

void write_threads(spool::Writer& writer, Names& all) {
  std::vector<spool::Thread> rows;
  for (; all.threads_told < all.threads.size(); ++all.threads_told) {
    const auto& [thread, text] = all.threads[all.threads_told];
    rows.push_back({thread, writer.intern(text)});
  }
  writer.append(spool::Kind::kThread, rows);
}

void write_schemas(spool::Writer& writer, Names& all) {
  std::vector<spool::Schema> schemas;
  std::vector<spool::SchemaEntry> entries;
  for (; all.schemas_told < all.schemas.size(); ++all.schemas_told) {
    const Schema& schema = all.schemas[all.schemas_told];
    schemas.push_back(schema.facts);
    schemas.back().name = text_id(writer, schema.name);
    for (const SchemaEntry& entry : schema.entries) {
      entries.push_back(entry.facts);
      entries.back().name = text_id(writer, entry.name);
      entries.back().description = text_id(writer, entry.description);
    }
  }
  writer.append(spool::Kind::kSchema, schemas);
  writer.append(spool::Kind::kSchemaEntry, entries);
}

}  // namespace

const Domain* create_domain(std::string text) {
  Names& all = names();
  std::lock_guard lock(all.mutex);
  const auto id = static_cast<uint32_t>(all.domains.size()) + kFirstDomain;
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

void start() noexcept {
  Names& all = names();
  std::lock_guard lock(all.mutex);
  all.labels_told = all.threads_told = all.resources_told = all.schemas_told = 0;
}

void write_new(spool::Writer& writer) {
  Names& all = names();
  std::lock_guard lock(all.mutex);
  write_labels(writer, all);
  write_schemas(writer, all);
  write_threads(writer, all);
  std::vector<spool::Resource> resources;
  for (; all.resources_told < all.resources.size(); ++all.resources_told) {
    const Resource& resource = all.resources[all.resources_told];
    resources.push_back(resource.facts);
    resources.back().name = text_id(writer, resource.name);
  }
  writer.append(spool::Kind::kResource, resources);
}

void write_threads_again(spool::Writer& writer) {
  Names& all = names();
  std::lock_guard lock(all.mutex);
  all.threads_told = 0;
  write_threads(writer, all);
}

}  // namespace plab::recorder::nvtx_names
