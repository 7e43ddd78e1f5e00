#include "core/ps/store.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

namespace tfdist::ps {
std::optional<uint64_t> BytesOf(DType dtype, uint64_t elements) {
  const uint64_t size = ByteSize(dtype);
  if (elements > kMaxPayloadBytes / size) return std::nullopt;
  return elements * size;
}

Store::Store(const ServerOptions& options)
    : watched_workers_(options.compensation == Compensation::kNone ? 0 : options.schedule.workers),
      hogwild_(options.hogwild),
      memory_(std::make_shared<MemoryBudget>(options.memory_budget)),
      pool_(memory_),
      clock_(options.time) {}

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
      return InvalidArgument(
          StrCat("table '", entry.name,
                 "' was created with another configuration: all workers have to give "
                 "the same width, optimizer, initializer, admission and eviction"));
    }
  }
  uint64_t bytes = 0;
  for (const auto& table : made) bytes += table == nullptr ? 0 : table->counted_bytes();
  if (bytes > 0) memory_->Check(bytes, MemoryUse::kPersistent);
  reply->tables.clear();
  const size_t before = tables_.size();
  try {
    for (size_t i = 0; i < made.size(); ++i) {
      const auto [known, is_new] =
          table_numbers_.emplace(request.entries[i].name, static_cast<uint32_t>(tables_.size()));
      if (is_new) tables_.push_back(std::move(made[i]));
      reply->tables.push_back(known->second);
    }
  } catch (const std::bad_alloc&) {
    tables_.resize(before);
    for (auto known = table_numbers_.begin(); known != table_numbers_.end();) {
      known = known->second < before ? std::next(known) : table_numbers_.erase(known);
    }
    throw;
  }
  for (size_t i = before; i < tables_.size(); ++i) tables_[i]->ChargeTo(memory_);
  return Status();
}

std::vector<std::shared_ptr<Table>> Store::tables() const {
  const auto sharing = Share();
  return tables_;
}

Shard* Store::FindName(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

Status Store::Create(const CreateRequest& request, const std::vector<BlockPtr>& values,
                     CreateReply* reply) {
  const auto lock = Exclude();
  if (Status s = CheckCreate(request); !s.ok()) return s;
  const size_t before = shards_.size();
  try {
    size_t value = 0;
    for (const CreateRequest::Entry& entry : request.entries) {
      const Shard* shard = FindName(entry.name);
      if (const auto aside = aside_.find(entry.name); shard == nullptr && aside != aside_.end()) {
        shard = Add(entry.name, entry.dtype, entry.elements, aside->second.block);
      }
      if (shard == nullptr && entry.has_value) {
        // Its memory is held already, by the request.
        memory_->CheckKept(values[value]->bytes());
        shard = Add(entry.name, entry.dtype, entry.elements, values[value]);
      }
      if (entry.has_value) ++value;
      reply->shards.push_back(shard == nullptr ? kNoShard : shard->number);
    }
  } catch (const std::bad_alloc&) {
    Remove(before);
    throw;
  }
  for (size_t i = before; i < shards_.size(); ++i) aside_.erase(shards_[i]->name);
  return Status();
}

Status Store::CheckCreate(const CreateRequest& request) const {
  std::unordered_map<std::string_view, const CreateRequest::Entry*> seen;
  for (const CreateRequest::Entry& entry : request.entries) {
    if (entry.name.size() > kMaxNameBytes) {
      return InvalidArgument(StrCat("the name of shard '", entry.name.substr(0, 64), "...' has ",
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
      return InvalidArgument(StrCat("shard '", entry.name, "': expected ",
                                    Describe(dtype, elements), ", as it was created, received ",
                                    Describe(entry.dtype, entry.elements)));
    }
  }
  return Status();
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
  shards_.push_back(std::move(shard));
  Shard* const added = shards_.back().get();
  try {
    by_name_.emplace(name, added);
  } catch (const std::bad_alloc&) {
    shards_.pop_back();
    throw;
  }
  ++count_;
  value_bytes_ += added->bytes;
  memory_->Keep(added->bytes);
  return added;
}

void Store::Remove(size_t count) {
  for (; shards_.size() > count; shards_.pop_back()) {
    const Shard& last = *shards_.back();
    by_name_.erase(last.name);
    --count_;
    value_bytes_ -= last.bytes;
    memory_->Unkeep(last.bytes);
  }
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
  std::vector<Binding> bindings;
  for (const BindRequest::Entry& entry : request.entries) {
    const Shard* const shard = Find(entry.shard);
    bindings.push_back({request.config, entry.weight_decay, {}});
    for (const uint32_t slot : entry.slots) bindings.back().slots.push_back(Find(slot));
    const std::optional<Binding>& before = shard->binding;
    if (before.has_value() &&
        says(before->config, before->weight_decay) != says(request.config, entry.weight_decay)) {
      if (count++ == 0) *replaced = StrCat("'", shard->name, "'");
    }
  }
  if (count > 1) *replaced += StrCat(" and ", count - 1, " more");
  for (size_t i = 0; i < bindings.size(); ++i) {
    Find(request.entries[i].shard)->binding = std::move(bindings[i]);
  }
  return Status();
}

Status Store::CheckBind(const OptimizerConfig& config, const BindRequest::Entry& entry) const {
  const Shard* shard = Find(entry.shard);
  if (shard == nullptr)
    return InvalidArgument(StrCat("there is no shard ", entry.shard, " to bind"));
  if (!CanOptimize(shard->dtype)) {
    return InvalidArgument(StrCat(
        "shard '", shard->name, "': expected float32 or float64 to run an optimizer on, received ",
        Describe(shard->dtype, shard->elements)));
  }
  const size_t expected = SlotCount(config);
  if (entry.slots.size() != expected) {
    return InvalidArgument(StrCat("shard '", shard->name, "': its optimizer has ", expected,
                                  " slots, received ", entry.slots.size()));
  }
  for (size_t i = 0; i < entry.slots.size(); ++i) {
    const Shard* slot = Find(entry.slots[i]);
    if (slot == nullptr) {
      return InvalidArgument(StrCat("shard '", shard->name, "': there is no shard ", entry.slots[i],
                                    " to be its slot"));
    }
    if (slot->dtype != shard->dtype || slot->elements != shard->elements) {
      return InvalidArgument(StrCat("shard '", shard->name, "': expected a slot of ",
                                    Describe(shard->dtype, shard->elements), ", received '",
                                    slot->name, "' of ", Describe(slot->dtype, slot->elements)));
    }
    const auto earlier = entry.slots.begin() + i;
    if (slot == shard || std::find(entry.slots.begin(), earlier, entry.slots[i]) != earlier) {
      return InvalidArgument(StrCat("shard '", shard->name, "': '", slot->name,
                                    "' can be only one of its value and its slots"));
    }
  }
  return Status();
}

}  // namespace tfdist::ps
