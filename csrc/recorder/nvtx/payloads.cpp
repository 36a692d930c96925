// SPDX-License-Identifier: Apache-2.0
#include "recorder/nvtx/payloads.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "recorder/nvtx/names.h"

namespace plab::recorder::nvtx_payloads {
namespace {

constexpr size_t kMostBytes = 64 << 10, kMostPayloads = 64, kMostEntries = 4096;
constexpr uint64_t kEntryIsMessage = 1 << 10, kRegisteredString = 80;  // of nvtx::SchemaEntryAttributes
constexpr size_t kSizeUnknown = SIZE_MAX;

size_t size_of(uint32_t domain, const nvtx::PayloadData& payload) {
  if (payload.bytes != kSizeUnknown) return payload.bytes;
  const auto schema = nvtx_names::find_schema(domain, payload.schema);
  return schema ? schema->facts.bytes : 0;
}

std::string text(const char* given) { return given ? given : ""; }

}  // namespace

std::string copy(uint32_t domain, const nvtx::PayloadData* payloads, size_t count) {
  std::string out;
  for (size_t i = 0; payloads && i < std::min(count, kMostPayloads); ++i) {
    const uint64_t bytes = size_of(domain, payloads[i]);
    if (!payloads[i].data || bytes == 0 || bytes > kMostBytes) continue;
    const uint64_t header[] = {domain, payloads[i].schema, bytes, sizeof(uint64_t[4]) + bytes};
    out.append(reinterpret_cast<const char*>(header), sizeof header);
    out.append(static_cast<const char*>(payloads[i].data), bytes);
  }
  return out;
}

std::string message(uint32_t domain, const nvtx::PayloadData* payloads, size_t count) {
  for (size_t i = 0; payloads && i < std::min(count, kMostPayloads); ++i) {
    const auto schema = nvtx_names::find_schema(domain, payloads[i].schema);
    if (!schema || !payloads[i].data) continue;
    const size_t bytes = size_of(domain, payloads[i]);
    for (const nvtx_names::SchemaEntry& entry : schema->entries) {
      const auto& [facts, name, description] = entry;
      const bool placed = facts.offset || facts.index == 0;  // else it depends on alignment: not supported
      if (!(facts.flags & kEntryIsMessage) || facts.kind != kRegisteredString || !placed) continue;
      if (facts.offset + sizeof(void*) > bytes) continue;
      const nvtx_names::RegisteredString* string;
      std::memcpy(&string, static_cast<const char*>(payloads[i].data) + facts.offset, sizeof string);
      if (string) return string->text;
    }
  }
  return "";
}

uint64_t register_schema(uint32_t domain, const nvtx::SchemaAttributes& attributes) {
  const auto has = [&attributes](uint64_t field) { return (attributes.fields & field) != 0; };
  nvtx_names::Schema schema{};
  auto& facts = schema.facts;
  facts.domain = domain;
  if (has(nvtx::kSchemaName)) schema.name = text(attributes.name);
  if (has(nvtx::kSchemaType)) facts.type = static_cast<uint32_t>(attributes.type);
  if (has(nvtx::kSchemaFlags)) facts.flags = attributes.flags;
  if (has(nvtx::kSchemaBytes)) facts.bytes = attributes.bytes;
  if (has(nvtx::kSchemaAlignment)) facts.alignment = attributes.alignment;
  if (has(nvtx::kSchemaId)) facts.id = attributes.id;
  const bool counted = has(nvtx::kSchemaEntries) && has(nvtx::kSchemaEntryCount) && attributes.entries;
  const size_t count = counted ? std::min(attributes.entry_count, kMostEntries) : 0;
  facts.entries = static_cast<uint32_t>(count);
  for (size_t i = 0; i < count; ++i) {
    const nvtx::SchemaEntryAttributes& given = attributes.entries[i];
    nvtx_names::SchemaEntry& entry = schema.entries.emplace_back();
    entry.facts.kind = given.type;
    entry.facts.flags = given.flags;
    entry.facts.detail = given.detail;
    entry.facts.offset = given.offset;
    entry.facts.index = static_cast<uint32_t>(i);
    entry.name = text(given.name);
    entry.description = text(given.description);
  }
  return nvtx_names::register_schema(std::move(schema));
}

uint64_t register_enum(uint32_t domain, const nvtx::EnumAttributes& attributes) {
  const auto has = [&attributes](uint64_t field) { return (attributes.fields & field) != 0; };
  nvtx_names::Schema schema{};
  schema.facts.domain = domain;
  if (has(nvtx::kEnumName)) schema.name = text(attributes.name);
  if (has(nvtx::kEnumBytes)) schema.facts.bytes = attributes.bytes;
  if (has(nvtx::kEnumId)) schema.facts.id = attributes.id;
  const bool counted = has(nvtx::kEnumEntries) && has(nvtx::kEnumEntryCount) && attributes.entries;
  const size_t count = counted ? std::min(attributes.entry_count, kMostEntries) : 0;
  schema.facts.entries = static_cast<uint32_t>(count);
  for (size_t i = 0; i < count; ++i) {
    nvtx_names::SchemaEntry& entry = schema.entries.emplace_back();
    entry.facts.kind = attributes.entries[i].value;
    entry.facts.flags = attributes.entries[i].is_flag != 0;
    entry.facts.index = static_cast<uint32_t>(i);
    entry.name = text(attributes.entries[i].name);
  }
  return nvtx_names::register_schema(std::move(schema));
}

}  // namespace plab::recorder::nvtx_payloads
