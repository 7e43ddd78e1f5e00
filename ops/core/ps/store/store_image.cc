// What a store saves and goes on from.
#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "core/ps/store/store.h"

namespace tfdist::ps {
namespace {

BlockPtr Copy(const BlockPtr& block, BlockPool* pool) {
  BlockPtr copy = pool->Take(block->bytes());
  std::memcpy(copy->data(), block->data(), block->bytes());
  return copy;
}

// The name of the variable that a shard is a part of: "x/rows_0_of_2" is one of "x".
std::string VariableOf(const std::string& shard) {
  constexpr std::string_view kRows = "/rows_", kOf = "_of_", kDigits = "0123456789";
  const size_t at = shard.rfind(kRows);
  if (at == std::string::npos) return shard;
  const size_t of = shard.find_first_not_of(kDigits, at + kRows.size());
  if (of == std::string::npos || shard.compare(of, kOf.size(), kOf) != 0) return shard;
  const bool ends = shard.find_first_not_of(kDigits, of + kOf.size()) == std::string::npos;
  return ends ? shard.substr(0, at) : shard;
}

}  // namespace

std::vector<SavedShard> Store::Save() {
  std::vector<SavedShard> saved;
  for (const auto& shard : shards_) {
    saved.push_back({shard->name, shard->dtype, shard->elements,
                     hogwild_ ? Copy(shard->block, &pool_) : shard->block});
  }
  return saved;
}

std::vector<uint64_t> Store::SaveUpdates() const {
  std::vector<uint64_t> updates;
  for (const auto& shard : shards_) updates.push_back(shard->updates);
  return updates;
}

Status Store::Restore(const std::vector<SavedShard>& shards) {
  const auto lock = Exclude();
  for (const SavedShard& saved : shards) {
    const std::optional<uint64_t> bytes = BytesOf(saved.dtype, saved.elements);
    if (saved.block == nullptr || bytes != saved.block->bytes()) {
      return InvalidArgument(StrCat("saved shard '", saved.name,
                                    "': ", Describe(saved.dtype, saved.elements), " does not fit ",
                                    saved.block == nullptr ? 0 : saved.block->bytes(), " bytes"));
    }
    if (saved.name.size() > kMaxNameBytes || FindName(saved.name) != nullptr) {
      return InvalidArgument(StrCat("saved shard '", saved.name.substr(0, 64),
                                    "': its name is too long, or was there before"));
    }
    if (!hogwild_) saved.block->ChargeTo(memory_);
    Add(saved.name, saved.dtype, saved.elements,
        hogwild_ ? Copy(saved.block, &pool_) : saved.block);
  }
  return Status();
}

void Store::RestoreUpdates(const std::vector<uint64_t>& updates) {
  const auto lock = Exclude();
  for (size_t i = 0; i < std::min(updates.size(), shards_.size()); ++i) {
    shards_[i]->updates = updates[i];
  }
}

std::vector<std::shared_ptr<Table>> Store::SaveTables(bool changed_only) {
  try {
    for (const auto& table : tables_) table->BeginSave(changed_only);
    return tables_;
  } catch (const std::bad_alloc&) {
    for (const auto& table : tables_) table->EndSave();
    throw;
  }
}

Status Store::RestoreTables(const std::vector<std::shared_ptr<Table>>& tables) {
  const auto lock = Exclude();
  for (const auto& table : tables) {
    const auto number = static_cast<uint32_t>(tables_.size());
    if (!table_numbers_.emplace(table->name(), number).second) {
      return InvalidArgument(StrCat("saved table '", table->name(), "' was there before"));
    }
    tables_.push_back(table);
    unclaimed_tables_.insert(number);
    table->EvictExcess();
    table->ChargeTo(memory_);
  }
  return Status();
}

Status Store::CheckAside(const CreateRequest::Entry& entry) const {
  const auto part = aside_parts_.find(VariableOf(entry.name));
  if (part == aside_parts_.end()) return Status();
  const auto found = aside_.find(entry.name);
  if (found == aside_.end()) {
    return InvalidArgument(StrCat("shard '", entry.name,
                                  "': the checkpoint of another number of servers ", "has '",
                                  part->second, "' instead: expected the variable to be split ",
                                  "into as many parts as it was then"));
  }
  const SavedShard& saved = found->second;
  if (saved.dtype == entry.dtype && saved.elements == entry.elements) return Status();
  return InvalidArgument(StrCat("shard '", entry.name, "': expected ",
                                Describe(saved.dtype, saved.elements),
                                ", as in the checkpoint of another number of servers, received ",
                                Describe(entry.dtype, entry.elements)));
}

void Store::PutAside(const std::vector<SavedShard>& shards) {
  const auto lock = Exclude();
  for (const SavedShard& shard : shards) {
    shard.block->ChargeTo(memory_);
    aside_[shard.name] = shard;
    aside_parts_[VariableOf(shard.name)] = shard.name;
  }
}

std::vector<SavedShard> Store::SaveAside() const {
  std::vector<SavedShard> saved;
  for (const auto& [name, shard] : aside_) saved.push_back(shard);
  return saved;
}

void Store::ForgetAside() {
  aside_.clear();
  aside_parts_.clear();
}

}  // namespace tfdist::ps
