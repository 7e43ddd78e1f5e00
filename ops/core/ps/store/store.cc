#include "core/ps/store/store.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "core/ps/table/table_batch.h"

namespace tfdist::ps {
namespace {

constexpr size_t kCopiedAtOnce = 4096;  // rows

bool SaysTheSame(const TableConfig& a, const TableConfig& b) {
  return Encode(TableRequest{{{"", a, false}}}) == Encode(TableRequest{{{"", b, false}}});
}

// Fills a new table with the values of another one's rows, of the same width, without its slots.
// Throws if there is no memory for them.
void CopyValues(const Table& from, Table* to, const std::shared_ptr<MemoryBudget>& budget) {
  to->ChargeTo(budget);
  const size_t width = to->config().width, floats = from.content_floats();
  uint64_t cursor = 0;
  for (bool more = true; more;) {
    SavedRows rows;
    more = from.Dump(kCopiedAtOnce, &cursor, &rows);
    const size_t count = rows.ids.size();
    std::vector<float> values(count * width);
    for (size_t i = 0; i < count; ++i) {
      std::copy_n(rows.content.begin() + i * floats, width, values.begin() + i * width);
    }
    SavedRows fresh = to->NewRows(0, rows.ids.data(), count, values.data());
    fresh.used = std::move(rows.used);
    fresh.counts = std::move(rows.counts);
    const auto room =
        to->Prepare(fresh.ids.data(), count, Table::Makes::kAll, /*within_budget=*/true);
    if (const Status status = to->Restore(fresh); !status.ok()) std::abort();  // they fit
  }
  to->EvictExcess();
}

}  // namespace

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

Status Store::CreateTables(const TableRequest& request, TableReply* reply,
                           std::vector<std::shared_ptr<Table>>* replaced, bool is_replay) {
  const auto lock = Exclude();
  const size_t count = request.entries.size();
  std::vector<std::shared_ptr<Table>> made(count);
  for (size_t i = 0; i < count; ++i) {
    const TableRequest::Entry& entry = request.entries[i];
    const auto known = table_numbers_.find(entry.name);
    const bool is_new = known == table_numbers_.end();
    if (!is_new) {
      const Table& table = *tables_[known->second];
      if (SaysTheSame(entry.config, table.config())) continue;
      if (Status s = CheckTable(entry, known->second, is_replay); !s.ok()) return s;
    }
    std::unique_ptr<Table> fresh;
    if (Status s = Table::Create(entry.config, &fresh, entry.name); !s.ok()) {
      return Status(s.code(), StrCat("table '", entry.name, "': ", s.message()));
    }
    made[i] = std::move(fresh);
    if (!is_new) CopyValues(*tables_[known->second], made[i].get(), memory_);
  }
  const size_t before = tables_.size();
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool is_new = table_numbers_.count(request.entries[i].name) == 0;
    if (is_new) bytes += made[i]->counted_bytes();  // the others are charged already
  }
  if (bytes > 0) memory_->Check(bytes, MemoryUse::kPersistent);
  reply->tables.clear();
  try {
    reply->tables.reserve(count);
    replaced->reserve(replaced->size() + count);
    tables_.reserve(before + count);
    for (const TableRequest::Entry& entry : request.entries) {
      const auto next = static_cast<uint32_t>(table_numbers_.size());
      reply->tables.push_back(table_numbers_.emplace(entry.name, next).first->second);
      if (is_replay) unclaimed_tables_.insert(reply->tables.back());
    }
  } catch (const std::bad_alloc&) {
    for (auto known = table_numbers_.begin(); known != table_numbers_.end();) {
      known = known->second < before ? std::next(known) : table_numbers_.erase(known);
    }
    throw;
  }
  // Nothing fails from here on.
  for (size_t i = 0; i < count; ++i) {
    const uint32_t number = reply->tables[i];
    if (!is_replay) unclaimed_tables_.erase(number);
    if (made[i] == nullptr) continue;
    if (number < before) {
      replaced->push_back(std::exchange(tables_[number], std::move(made[i])));
    } else if (number == tables_.size()) {  // else it was in the request before
      tables_.push_back(std::move(made[i]));
      tables_.back()->ChargeTo(memory_);
    }
  }
  return Status();
}

// Of a table that is there with another configuration: whether that may be replaced.
Status Store::CheckTable(const TableRequest::Entry& entry, uint32_t number, bool is_replay) const {
  const TableConfig& has = tables_[number]->config();
  const bool is_unclaimed = unclaimed_tables_.count(number) > 0;
  const bool may_replace = is_unclaimed && has.width == entry.config.width;
  if (may_replace && (is_replay || entry.resets_slots)) return Status();
  std::string what = StrCat("table '", entry.name, "' was created with another configuration");
  const std::string slots = SlotsText(has), wanted = SlotsText(entry.config);
  if (has.width != entry.config.width) {
    return InvalidArgument(
        StrCat(what, ": expected a width of ", has.width, ", received ", entry.config.width));
  }
  if (slots != wanted) {
    what = StrCat(what, ", whose rows have the slots ", slots, "; expected ", wanted,
                  ", as the optimizer keeps them that is asked for");
  }
  if (is_unclaimed) {
    return InvalidArgument(StrCat(what,
                                  ". It is from a checkpoint: with reset_slots=True its rows "
                                  "keep their values, and slots are reset"));
  }
  return InvalidArgument(StrCat(what, ": all workers have to give the same width, optimizer, ",
                                "initializer, admission and eviction"));
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
        memory_->CheckPersistent(values[value]->bytes());
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
  memory_->MakePersistent(added->bytes);
  return added;
}

void Store::Remove(size_t count) {
  for (; shards_.size() > count; shards_.pop_back()) {
    const Shard& last = *shards_.back();
    by_name_.erase(last.name);
    --count_;
    value_bytes_ -= last.bytes;
    memory_->MakeTransient(last.bytes);
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
