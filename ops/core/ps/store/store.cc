#include "core/ps/store/store.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <string_view>
#include <utility>

#include "core/base/checked_size.h"

namespace tfdist::ps {
namespace {

constexpr size_t kRowsPerCopy = 4096;

// Copies the rows of a table to a new one of the same width, but not their slots. Throws if there
// is no memory for them.
void CopyValues(Table* from, Table* to, const std::shared_ptr<MemoryBudget>& budget) {
  to->ChargeTo(budget);
  const size_t width = to->config().width, floats = from->content_floats();
  uint64_t cursor = 0;
  for (bool more = true; more;) {
    SavedRows rows;
    more = from->ScanRows(kRowsPerCopy, &cursor, &rows);
    const size_t count = rows.ids.size();
    std::vector<float> values(count * width);
    for (size_t i = 0; i < count; ++i) {
      std::copy_n(rows.content.begin() + i * floats, width, values.begin() + i * width);
    }
    SavedRows fresh = to->NewRows(0, rows.ids.data(), count, values.data());
    fresh.used = std::move(rows.used);
    fresh.counts = std::move(rows.counts);
    const auto batch =
        to->Prepare(fresh.ids.data(), count, Table::OnMissing::kCreate, /*within_budget=*/true);
    if (const Status status = to->ImportRows(fresh); !status.ok()) std::abort();  // NewRows fits
  }
  to->EvictExcess();
}

BlockPtr Copy(const BlockPtr& block, BlockPool* pool) {
  BlockPtr copy = pool->Allocate(block->bytes());
  std::memcpy(copy->data(), block->data(), block->bytes());
  return copy;
}

// The name of the variable that a shard is a part of: "x/rows_0_of_2" is a part of "x".
std::string VariableOf(const std::string& shard) {
  constexpr std::string_view kRows = "/rows_", kOf = "_of_", kDigits = "0123456789";
  const size_t at = shard.rfind(kRows);
  if (at == std::string::npos) return shard;
  const size_t of = shard.find_first_not_of(kDigits, at + kRows.size());
  if (of == std::string::npos || shard.compare(of, kOf.size(), kOf) != 0) return shard;
  const bool ends = shard.find_first_not_of(kDigits, of + kOf.size()) == std::string::npos;
  return ends ? shard.substr(0, at) : shard;
}

// Fails if the block of a saved shard is not as large as its description says.
Status CheckSaved(const SavedShard& saved) {
  const uint64_t received = saved.block == nullptr ? 0 : saved.block->bytes();
  if (saved.block != nullptr && BytesOf(saved.dtype, saved.elements) == received) return Status();
  return InvalidArgument(StrCat("saved shard '", saved.name,
                                "': ", Describe(saved.dtype, saved.elements), " does not fit ",
                                received, " bytes"));
}

}  // namespace

std::optional<uint64_t> BytesOf(DType dtype, uint64_t elements) {
  const CheckedSize bytes = CheckedSize(elements) * ByteSize(dtype);
  return bytes.IsAtMost(kMaxPayloadBytes) ? bytes.value() : std::nullopt;
}

Store::Store(const StoreOptions& options, int workers)
    : tracked_workers_(options.compensation == Compensation::kNone ? 0 : workers),
      hogwild_(options.hogwild),
      revises_(options.compensation == Compensation::kAdaptiveRevision),
      memory_(std::make_shared<MemoryBudget>(options.memory_budget)),
      pool_(memory_),
      clock_(options.time) {}

std::shared_lock<std::shared_mutex> Store::Share() const {
  // Without the turnstile, threads that share could starve a thread that excludes.
  {
    const std::lock_guard<std::mutex> turnstile(turnstile_);
  }
  return std::shared_lock<std::shared_mutex>(changes_);
}

std::unique_lock<std::shared_mutex> Store::Exclude() const {
  const std::lock_guard<std::mutex> turnstile(turnstile_);
  return std::unique_lock<std::shared_mutex>(changes_);
}

Shard* Store::Find(uint32_t id) const { return id < shards_.size() ? shards_[id].get() : nullptr; }

const std::shared_ptr<Table>& Store::HoldTable(uint32_t id) const {
  static const std::shared_ptr<Table>* const none = new std::shared_ptr<Table>;
  return id < tables_.size() ? tables_[id] : *none;
}

Status Store::CreateTables(const TableRequest& request, TableReply* reply,
                           std::vector<std::shared_ptr<Table>>* replaced, bool is_replay) {
  const auto lock = Exclude();
  const size_t count = request.entries.size();
  std::vector<std::shared_ptr<Table>> created(count);
  for (size_t i = 0; i < count; ++i) {
    const TableRequest::Entry& entry = request.entries[i];
    const auto known = table_ids_.find(entry.name);
    const bool is_new = known == table_ids_.end();
    if (!is_new) {
      const Table& table = *tables_[known->second];
      if (SameFields(entry.config, table.config())) continue;
      if (Status s = CheckTable(entry, known->second, is_replay); !s.ok()) return s;
    }
    std::unique_ptr<Table> fresh;
    if (Status s = Table::Create(entry.config, &fresh, entry.name); !s.ok()) {
      return Status(s.code(), StrCat("table '", entry.name, "': ", s.message()));
    }
    created[i] = std::move(fresh);
    if (!is_new) CopyValues(tables_[known->second].get(), created[i].get(), memory_);
  }
  const size_t before = tables_.size();
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool is_new = table_ids_.count(request.entries[i].name) == 0;
    if (is_new) bytes += created[i]->counted_bytes();  // replacements are charged already
  }
  if (bytes > 0) memory_->Check(bytes, MemoryUse::kPersistent);
  reply->tables.clear();
  try {
    reply->tables.reserve(count);
    replaced->reserve(replaced->size() + count);
    tables_.reserve(before + count);
    for (const TableRequest::Entry& entry : request.entries) {
      const auto next = static_cast<uint32_t>(table_ids_.size());
      reply->tables.push_back(table_ids_.emplace(entry.name, next).first->second);
      if (is_replay) unclaimed_tables_.insert(reply->tables.back());
    }
  } catch (const std::bad_alloc&) {
    for (auto known = table_ids_.begin(); known != table_ids_.end();) {
      known = known->second < before ? std::next(known) : table_ids_.erase(known);
    }
    throw;
  }
  // Nothing fails from here on.
  for (size_t i = 0; i < count; ++i) {
    const uint32_t id = reply->tables[i];
    if (!is_replay) unclaimed_tables_.erase(id);
    if (created[i] == nullptr) continue;
    if (id < before) {
      replaced->push_back(std::exchange(tables_[id], std::move(created[i])));
    } else if (id == tables_.size()) {  // else the request names the table twice
      tables_.push_back(std::move(created[i]));
      tables_.back()->ChargeTo(memory_);
    }
  }
  return Status();
}

Status Store::FindTables(const TableRequest& request, TableReply* reply) const {
  const auto sharing = Share();
  reply->tables.clear();
  for (const TableRequest::Entry& entry : request.entries) {
    const auto known = table_ids_.find(entry.name);
    if (known == table_ids_.end()) {
      std::string names;
      for (const auto& table : tables_) names += StrCat(names.empty() ? "" : ", ", table->name());
      return InvalidArgument(StrCat("expected one of the tables ", names.empty() ? "(none)" : names,
                                    ", received '", entry.name.substr(0, 64), "'"));
    }
    const uint32_t width = tables_[known->second]->config().width;
    if (width != entry.config.width) {
      return InvalidArgument(StrCat("table '", entry.name, "': expected a width of ", width,
                                    ", received ", entry.config.width));
    }
    reply->tables.push_back(known->second);
  }
  return Status();
}

// Whether a table that exists with another configuration may be replaced.
Status Store::CheckTable(const TableRequest::Entry& entry, uint32_t id, bool is_replay) const {
  const TableConfig& has = tables_[id]->config();
  const bool is_unclaimed = unclaimed_tables_.count(id) > 0;
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
      const auto unclaimed = unclaimed_.find(entry.name);
      if (shard == nullptr && unclaimed != unclaimed_.end()) {
        shard = Add(entry.name, entry.dtype, entry.elements, unclaimed->second.block);
      }
      if (shard == nullptr && entry.has_value) {
        // The request holds its memory already.
        memory_->CheckPersistent(values[value]->bytes());
        shard = Add(entry.name, entry.dtype, entry.elements, values[value]);
      }
      if (entry.has_value) ++value;
      reply->shards.push_back(shard == nullptr ? kNoShard : shard->id);
    }
  } catch (const std::bad_alloc&) {
    Remove(before);
    throw;
  }
  for (size_t i = before; i < shards_.size(); ++i) unclaimed_.erase(shards_[i]->name);
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
      if (Status s = CheckUnclaimed(entry); !s.ok()) return s;
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

Status Store::CheckUnclaimed(const CreateRequest::Entry& entry) const {
  const auto part = unclaimed_parts_.find(VariableOf(entry.name));
  if (part == unclaimed_parts_.end()) return Status();
  const auto found = unclaimed_.find(entry.name);
  if (found == unclaimed_.end()) {
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

Shard* Store::Add(const std::string& name, DType dtype, uint64_t elements, BlockPtr block) {
  auto shard = std::make_unique<Shard>();
  shard->id = static_cast<uint32_t>(shards_.size());
  shard->name = name;
  shard->dtype = dtype;
  shard->elements = elements;
  shard->bytes = block->bytes();
  shard->block = std::move(block);
  shard->seen.resize(tracked_workers_);
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
  memory_->MarkPersistent(added->bytes);
  return added;
}

void Store::Remove(size_t count) {
  for (; shards_.size() > count; shards_.pop_back()) {
    const Shard& last = *shards_.back();
    by_name_.erase(last.name);
    --count_;
    value_bytes_ -= last.bytes;
    memory_->UnmarkPersistent(last.bytes);
  }
}

Status Store::Bind(const BindRequest& request, std::string* replaced) {
  const auto lock = Exclude();
  for (const BindRequest::Entry& entry : request.entries) {
    if (Status s = CheckBind(request.config, entry); !s.ok()) return s;
  }
  size_t count = 0;
  replaced->clear();
  std::vector<Binding> bindings;
  for (const BindRequest::Entry& entry : request.entries) {
    const Shard* const shard = Find(entry.shard);
    bindings.push_back({request.config, entry.weight_decay, {}});
    for (const uint32_t slot : entry.slots) bindings.back().slots.push_back(Find(slot));
    const std::optional<Binding>& before = shard->binding;
    if (before.has_value() && !(SameFields(before->config, request.config) &&
                                before->weight_decay == entry.weight_decay)) {
      if (count++ == 0) *replaced = StrCat("'", shard->name, "'");
    }
  }
  if (count > 1) *replaced += StrCat(" and ", count - 1, " more");
  if (revises_) AddRevisions(request);
  for (size_t i = 0; i < bindings.size(); ++i) {
    Find(request.entries[i].shard)->binding = std::move(bindings[i]);
  }
  return Status();
}

void Store::AddRevisions(const BindRequest& request) {
  std::vector<Shard*> shards;
  uint64_t bytes = 0;
  for (const BindRequest::Entry& entry : request.entries) {
    Shard* const shard = Find(entry.shard);
    if (shard->revision.sum != nullptr ||
        std::find(shards.begin(), shards.end(), shard) != shards.end()) {
      continue;
    }
    shards.push_back(shard);
    bytes += 2 * shard->bytes;
  }
  if (bytes > 0) memory_->CheckPersistent(bytes);
  std::vector<Shard::Revision> revisions;
  for (const Shard* shard : shards) {
    revisions.push_back({pool_.Allocate(shard->bytes), pool_.Allocate(shard->bytes)});
    std::memset(revisions.back().sum->data(), 0, shard->bytes);
    std::memset(revisions.back().deficit->data(), 0, shard->bytes);
  }
  for (size_t i = 0; i < shards.size(); ++i) shards[i]->revision = std::move(revisions[i]);
  memory_->MarkPersistent(bytes);
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
  if (revises_ && config.kind != OptimizerKind::kAdagrad) {
    return InvalidArgument(StrCat("shard '", shard->name,
                                  "': adaptive revision revises the steps of Adagrad, ",
                                  "received another optimizer"));
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

std::vector<SavedShard> Store::SnapshotShards() {
  std::vector<SavedShard> saved;
  for (const auto& shard : shards_) {
    saved.push_back({shard->name, shard->dtype, shard->elements,
                     hogwild_ ? Copy(shard->block, &pool_) : shard->block});
  }
  return saved;
}

std::vector<uint64_t> Store::update_counts() const {
  std::vector<uint64_t> updates;
  for (const auto& shard : shards_) updates.push_back(shard->updates);
  return updates;
}

Status Store::RestoreShards(const std::vector<SavedShard>& shards) {
  const auto lock = Exclude();
  for (const SavedShard& saved : shards) {
    if (Status s = CheckSaved(saved); !s.ok()) return s;
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

Status Store::CheckShard(const std::string& name, DType dtype, uint64_t elements) const {
  const auto sharing = Share();
  const Shard* const shard = FindName(name);
  if (shard == nullptr || (shard->dtype == dtype && shard->elements == elements)) return Status();
  return InvalidArgument(StrCat("saved shard '", name, "': expected ",
                                Describe(shard->dtype, shard->elements), ", received ",
                                Describe(dtype, elements)));
}

Status Store::RestoreValue(const SavedShard& saved) {
  if (Status s = CheckSaved(saved); !s.ok()) return s;
  if (Status s = CheckShard(saved.name, saved.dtype, saved.elements); !s.ok()) return s;
  {
    const auto lock = Exclude();
    if (Shard* const shard = FindName(saved.name)) {
      saved.block->ChargeTo(memory_);
      shard->block = saved.block;
      ++shard->version;
      return Status();
    }
  }
  return AddUnclaimed({saved});
}

void Store::RestoreUpdateCounts(const std::vector<uint64_t>& updates) {
  const auto lock = Exclude();
  for (size_t i = 0; i < std::min(updates.size(), shards_.size()); ++i) {
    shards_[i]->updates = updates[i];
  }
}

std::vector<std::shared_ptr<Table>> Store::BeginTableSnapshots(bool changed_only) {
  try {
    for (const auto& table : tables_) table->BeginSnapshot(changed_only);
    return tables_;
  } catch (const std::bad_alloc&) {
    for (const auto& table : tables_) table->EndSnapshot();
    throw;
  }
}

Status Store::RestoreTables(const std::vector<std::shared_ptr<Table>>& tables) {
  const auto lock = Exclude();
  for (const auto& table : tables) {
    const auto id = static_cast<uint32_t>(tables_.size());
    if (!table_ids_.emplace(table->name(), id).second) {
      return InvalidArgument(StrCat("saved table '", table->name(), "' was there before"));
    }
    tables_.push_back(table);
    unclaimed_tables_.insert(id);
    table->EvictExcess();
    table->ChargeTo(memory_);
  }
  return Status();
}

Status Store::AddUnclaimed(const std::vector<SavedShard>& shards) {
  const auto lock = Exclude();
  for (const SavedShard& shard : shards) {
    if (Status s = CheckSaved(shard); !s.ok()) return s;
    shard.block->ChargeTo(memory_);
    unclaimed_[shard.name] = shard;
    unclaimed_parts_[VariableOf(shard.name)] = shard.name;
  }
  return Status();
}

std::vector<SavedShard> Store::SnapshotUnclaimed() const {
  std::vector<SavedShard> saved;
  for (const auto& [name, shard] : unclaimed_) saved.push_back(shard);
  return saved;
}

void Store::ForgetUnclaimed() {
  unclaimed_.clear();
  unclaimed_parts_.clear();
}

}  // namespace tfdist::ps
