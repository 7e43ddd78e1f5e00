#include "core/ps/store.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tfdist::ps {
namespace {

Status Invalid(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
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

BlockPtr Copy(const BlockPtr& block, BlockPool* pool) {
  BlockPtr copy = pool->Take(block->bytes());
  std::memcpy(copy->data(), block->data(), block->bytes());
  return copy;
}

}  // namespace

std::optional<uint64_t> BytesOf(DType dtype, uint64_t elements) {
  const uint64_t size = ByteSize(dtype);
  if (elements > kMaxPayloadBytes / size) return std::nullopt;
  return elements * size;
}

Store::Store(const ServerOptions& options)
    : watched_workers_(options.compensation == Compensation::kNone ? 0 : options.schedule.workers),
      hogwild_(options.hogwild) {}

std::shared_lock<std::shared_mutex> Store::Share() const {
  // A shared mutex may let those who share pass those who exclude for ever.
  {
    const std::lock_guard<std::mutex> door(door_);
  }
  return std::shared_lock<std::shared_mutex>(changes_);
}

std::unique_lock<std::shared_mutex> Store::Exclude() const {
  const std::lock_guard<std::mutex> door(door_);
  return std::unique_lock<std::shared_mutex>(changes_);
}

Shard* Store::Find(uint32_t number) const {
  return number < shards_.size() ? shards_[number].get() : nullptr;
}

Table* Store::FindTable(uint32_t number) const {
  return number < tables_.size() ? tables_[number].get() : nullptr;
}

Status Store::CreateTables(const TableRequest& request, TableReply* reply) {
  const auto lock = Exclude();
  std::vector<std::unique_ptr<Table>> made(request.entries.size());
  for (size_t i = 0; i < made.size(); ++i) {
    const TableRequest::Entry& entry = request.entries[i];
    const auto known = table_numbers_.find(entry.name);
    if (known == table_numbers_.end()) {
      if (Status s = Table::Create(entry.config, &made[i], entry.name); !s.ok()) {
        return Status(s.code(), StrCat("table '", entry.name, "': ", s.message()));
      }
    } else if (Encode(TableRequest{{{"", entry.config}}}) !=
               Encode(TableRequest{{{"", tables_[known->second]->config()}}})) {
      return Invalid(StrCat("table '", entry.name,
                            "' was created with another configuration: all workers have to give "
                            "the same width, optimizer, initializer, admission and eviction"));
    }
  }
  reply->tables.clear();
  for (size_t i = 0; i < made.size(); ++i) {
    const auto [known, is_new] =
        table_numbers_.emplace(request.entries[i].name, static_cast<uint32_t>(tables_.size()));
    if (is_new) tables_.push_back(std::move(made[i]));
    reply->tables.push_back(known->second);
  }
  return Status();
}

std::vector<std::shared_ptr<Table>> Store::tables() const {
  const auto sharing = Share();
  return tables_;
}

std::vector<std::shared_ptr<Table>> Store::SaveTables(bool changed_only) {
  for (const auto& table : tables_) table->BeginSave(changed_only);
  return tables_;
}

Status Store::RestoreTables(const std::vector<std::shared_ptr<Table>>& tables) {
  const auto lock = Exclude();
  for (const auto& table : tables) {
    const auto number = static_cast<uint32_t>(tables_.size());
    if (!table_numbers_.emplace(table->name(), number).second) {
      return Invalid(StrCat("saved table '", table->name(), "' was there before"));
    }
    tables_.push_back(table);
  }
  return Status();
}

Shard* Store::FindName(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

Status Store::Create(const CreateRequest& request, const std::vector<BlockPtr>& values,
                     CreateReply* reply) {
  const auto lock = Exclude();
  if (Status s = CheckCreate(request); !s.ok()) return s;
  size_t value = 0;
  for (const CreateRequest::Entry& entry : request.entries) {
    const Shard* shard = FindName(entry.name);
    if (const auto aside = aside_.find(entry.name); shard == nullptr && aside != aside_.end()) {
      shard = Add(entry.name, entry.dtype, entry.elements, std::move(aside->second.block));
      aside_.erase(aside);
    }
    if (shard == nullptr && entry.has_value) {
      shard = Add(entry.name, entry.dtype, entry.elements, values[value]);
    }
    if (entry.has_value) ++value;
    reply->shards.push_back(shard == nullptr ? kNoShard : shard->number);
  }
  return Status();
}

Status Store::CheckCreate(const CreateRequest& request) const {
  std::unordered_map<std::string_view, const CreateRequest::Entry*> seen;
  for (const CreateRequest::Entry& entry : request.entries) {
    if (entry.name.size() > kMaxNameBytes) {
      return Invalid(StrCat("the name of shard '", entry.name.substr(0, 64), "...' has ",
                            entry.name.size(), " bytes, the limit is ", kMaxNameBytes));
    }
    DType dtype = entry.dtype;
    uint64_t elements = entry.elements;
    if (FindName(entry.name) == nullptr) {
      if (Status s = CheckAside(entry); !s.ok()) return s;
    }
    if (const Shard* shard = FindName(entry.name)) {
      dtype = shard->dtype;
      elements = shard->elements;
    } else if (const auto [first, fresh] = seen.emplace(entry.name, &entry); !fresh) {
      dtype = first->second->dtype;
      elements = first->second->elements;
    }
    if (dtype != entry.dtype || elements != entry.elements) {
      return Invalid(StrCat("shard '", entry.name, "': expected ", Describe(dtype, elements),
                            ", as it was created, received ",
                            Describe(entry.dtype, entry.elements)));
    }
  }
  return Status();
}

Status Store::CheckAside(const CreateRequest::Entry& entry) const {
  const auto part = aside_parts_.find(VariableOf(entry.name));
  if (part == aside_parts_.end()) return Status();
  const auto found = aside_.find(entry.name);
  if (found == aside_.end()) {
    return Invalid(StrCat("shard '", entry.name, "': the checkpoint of another number of servers ",
                          "has '", part->second, "' instead: expected the variable to be split ",
                          "into as many parts as it was then"));
  }
  const SavedShard& saved = found->second;
  if (saved.dtype == entry.dtype && saved.elements == entry.elements) return Status();
  return Invalid(StrCat("shard '", entry.name, "': expected ",
                        Describe(saved.dtype, saved.elements),
                        ", as in the checkpoint of another number of servers, received ",
                        Describe(entry.dtype, entry.elements)));
}

void Store::PutAside(const std::vector<SavedShard>& shards) {
  const auto lock = Exclude();
  for (const SavedShard& shard : shards) {
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

Shard* Store::Add(const std::string& name, DType dtype, uint64_t elements, BlockPtr block) {
  auto shard = std::make_unique<Shard>();
  shard->number = static_cast<uint32_t>(shards_.size());
  shard->name = name;
  shard->dtype = dtype;
  shard->elements = elements;
  shard->bytes = block->bytes();
  shard->block = std::move(block);
  shard->seen.resize(watched_workers_);
  by_name_.emplace(name, shard.get());
  shards_.push_back(std::move(shard));
  ++count_;
  value_bytes_ += shards_.back()->bytes;
  return shards_.back().get();
}

Status Store::Bind(const BindRequest& request, std::string* replaced) {
  const auto lock = Exclude();
  for (const BindRequest::Entry& entry : request.entries) {
    if (Status s = CheckBind(request.config, entry); !s.ok()) return s;
  }
  const auto says = [](const OptimizerConfig& config, double weight_decay) {
    return Encode(BindRequest{config, {{0, {}, weight_decay}}});
  };
  size_t count = 0;
  replaced->clear();
  for (const BindRequest::Entry& entry : request.entries) {
    Shard* const shard = Find(entry.shard);
    Binding binding{request.config, entry.weight_decay, {}};
    for (const uint32_t slot : entry.slots) binding.slots.push_back(Find(slot));
    const std::optional<Binding> before = std::exchange(shard->binding, std::move(binding));
    if (before.has_value() &&
        says(before->config, before->weight_decay) != says(request.config, entry.weight_decay)) {
      if (count++ == 0) *replaced = StrCat("'", shard->name, "'");
    }
  }
  if (count > 1) *replaced += StrCat(" and ", count - 1, " more");
  return Status();
}

Status Store::CheckBind(const OptimizerConfig& config, const BindRequest::Entry& entry) const {
  const Shard* shard = Find(entry.shard);
  if (shard == nullptr) return Invalid(StrCat("there is no shard ", entry.shard, " to bind"));
  if (!CanOptimize(shard->dtype)) {
    return Invalid(StrCat("shard '", shard->name,
                          "': expected float32 or float64 to run an optimizer on, received ",
                          Describe(shard->dtype, shard->elements)));
  }
  const size_t expected = SlotCount(config);
  if (entry.slots.size() != expected) {
    return Invalid(StrCat("shard '", shard->name, "': its optimizer has ", expected,
                          " slots, received ", entry.slots.size()));
  }
  for (size_t i = 0; i < entry.slots.size(); ++i) {
    const Shard* slot = Find(entry.slots[i]);
    if (slot == nullptr) {
      return Invalid(StrCat("shard '", shard->name, "': there is no shard ", entry.slots[i],
                            " to be its slot"));
    }
    if (slot->dtype != shard->dtype || slot->elements != shard->elements) {
      return Invalid(StrCat("shard '", shard->name, "': expected a slot of ",
                            Describe(shard->dtype, shard->elements), ", received '", slot->name,
                            "' of ", Describe(slot->dtype, slot->elements)));
    }
    const auto earlier = entry.slots.begin() + i;
    if (slot == shard || std::find(entry.slots.begin(), earlier, entry.slots[i]) != earlier) {
      return Invalid(StrCat("shard '", shard->name, "': '", slot->name,
                            "' can be only one of its value and its slots"));
    }
  }
  return Status();
}

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
      return Invalid(StrCat("saved shard '", saved.name,
                            "': ", Describe(saved.dtype, saved.elements), " does not fit ",
                            saved.block == nullptr ? 0 : saved.block->bytes(), " bytes"));
    }
    if (saved.name.size() > kMaxNameBytes || FindName(saved.name) != nullptr) {
      return Invalid(StrCat("saved shard '", saved.name.substr(0, 64),
                            "': its name is too long, or was there before"));
    }
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

}  // namespace tfdist::ps
