#include "core/ps/table/table.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "core/ps/table/ids_by_server.h"

namespace tfdist::ps {
namespace {

constexpr uint32_t kMaxWidth = 1 << 16;
constexpr size_t kSpareFraction = 16;  // one row in 16 may be kept spare

Status Expected(const char* what, double received) {
  return Status(StatusCode::kInvalidArgument,
                StrCat("a table: expected ", what, ", received ", received));
}

}  // namespace

Status Table::Check(const TableConfig& config) {
  if (config.width == 0 || config.width > kMaxWidth) {
    return Expected("a width from 1 to 65536", config.width);
  }
  if (!(config.probability > 0 && config.probability <= 1)) {
    return Expected("a probability above 0 and up to 1", config.probability);
  }
  if (config.min_count > UINT16_MAX) return Expected("a min_count up to 65535", config.min_count);
  if (!(config.ttl_seconds >= 0)) return Expected("ttl_seconds from 0 on", config.ttl_seconds);
  if (!(config.weight_decay >= 0)) {
    return Expected("a weight_decay from 0 on", config.weight_decay);
  }
  if (!(config.min_norm >= 0)) return Expected("a min_norm from 0 on", config.min_norm);
  // Its rows have the two slots of that optimizer.
  if (config.rule == RowRule::kExactAdam &&
      (config.optimizer.kind != OptimizerKind::kAdam || config.optimizer.amsgrad)) {
    return InvalidArgument(StrCat("a table: expected Adam without amsgrad for rows that catch up, ",
                                  "received an optimizer with ", SlotCount(config.optimizer),
                                  " slots"));
  }
  return Status();
}

Status Table::Create(const TableConfig& config, std::unique_ptr<Table>* out, std::string name) {
  if (Status s = Check(config); !s.ok()) return s;
  out->reset(new Table(config, std::move(name)));
  return Status();
}

Table::Table(const TableConfig& config, std::string name)
    : name_(std::move(name)),
      config_(config),
      optimizer_(config_),
      limit_(config.max_rows),
      used_stripes_(StripeCount(config.max_rows)) {
  for (size_t i = 0; i < kStripes; ++i) {
    stripes_[i] = std::make_unique<Stripe>(i, config_, optimizer_, &limit_, &promises_);
  }
}

void Table::ChargeTo(std::shared_ptr<MemoryBudget> budget) {
  for (const auto& stripe : stripes_) {
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    stripe->ChargeTo(budget);
  }
  budget_ = std::move(budget);
}

uint64_t Table::counted_bytes() const {
  uint64_t bytes = 0;
  for (const auto& stripe : stripes_) {
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    bytes += stripe->counted_bytes();
  }
  return bytes;
}

std::unique_ptr<TableBatch> Table::Prepare(const int64_t* ids, size_t count, OnMissing on_missing,
                                           bool within_budget) {
  auto batch = std::make_unique<TableBatch>(ids, count, used_stripes_);
  if (on_missing == OnMissing::kIgnore) return batch;
  // Assumes that no id has a row: finding out is expensive and needs the locks.
  const RowPromises::Counts max_new = MostNewRows(*batch);
  if (batch->Claim(max_new, &promises_)) return batch;
  for (size_t i = 0; i < kStripes; ++i) {
    if (batch->Has(i)) ReserveRows(i, max_new[i], on_missing, within_budget, batch.get());
  }
  return batch;
}

RowPromises::Counts Table::MostNewRows(const TableBatch& batch) const {
  // With a limit, rows are evicted when the table has one more than that.
  const uint64_t room = config_.max_rows == 0
                            ? UINT64_MAX
                            : config_.max_rows - std::min(config_.max_rows, row_count()) + 1;
  RowPromises::Counts counts;
  for (size_t i = 0; i < kStripes; ++i) counts[i] = std::min<uint64_t>(batch.count(i), room);
  return counts;
}

void Table::ReserveRows(size_t index, size_t max_new, OnMissing on_missing, bool within_budget,
                        TableBatch* batch) {
  if (batch->Claim(index, max_new, &promises_)) return;
  Stripe* const stripe = stripes_[index].get();
  const RowMap* const rows = &stripe->rows();
  const std::lock_guard<std::mutex> lock(stripe->mutex);
  // The total of spare rows of which `count` are not promised.
  const auto spare_for = [&](size_t count) { return promises_.promised(index) + count; };
  const auto claim = [&](size_t count) {
    while (!batch->Claim(index, count, &promises_)) {
      stripe->Reserve(spare_for(count), within_budget);
    }
  };
  // If that takes little memory, spare rows for all ids are allocated: in a table that has stopped
  // growing, later requests find them and do not get here.
  const size_t spare = spare_for(max_new);
  const bool is_little = spare <= std::max(rows->slab_rows(), rows->size() / kSpareFraction);
  if (is_little && (!within_budget || budget_ == nullptr ||
                    budget_->HasRoom(rows->BytesToReserve(spare), MemoryUse::kPersistent))) {
    try {
      return claim(max_new);
    } catch (const std::bad_alloc&) {  // fewer may fit
    }
  }
  size_t missing = 0;
  batch->Each(index, *rows, 0, [&](size_t, int64_t id, uint64_t hash) {
    if (rows->Find(id, hash) != RowMap::kNone) return;
    missing += on_missing == OnMissing::kCreate || stripe->MayAdmit(hash) ? 1 : 0;
  });
  if (missing > 0) claim(std::min(missing, max_new));
}

template <typename Use>
void Table::ForEach(const TableBatch& batch, size_t floats, const Use& use) {
  for (size_t i = 0; i < kStripes; ++i) {
    if (!batch.Has(i)) continue;
    Stripe& stripe = *stripes_[i];
    const std::lock_guard<std::mutex> lock(stripe.mutex);
    batch.Each(i, stripe.rows(), floats,
               [&](size_t index, int64_t id, uint64_t hash) { use(stripe, index, id, hash); });
  }
}

void Table::Lookup(double now, const int64_t* ids, size_t count, bool training, float* rows) {
  const OnMissing on_missing = training ? OnMissing::kAdmit : OnMissing::kIgnore;
  Lookup(now, *Prepare(ids, count, on_missing, /*within_budget=*/false), training, rows);
}

void Table::Lookup(double now, const TableBatch& batch, bool training, float* rows) {
  const uint32_t ticks = Ticks(now);
  const size_t width = config_.width;
  ForEach(batch, width, [&](Stripe& stripe, size_t index, int64_t id, uint64_t hash) {
    float* const out = rows + index * width;
    RowMap::Row row = stripe.Find(id, hash);
    ++stripe.stats().lookups;
    if (row != RowMap::kNone) {
      ++stripe.stats().hits;
      stripe.CatchUp(row);
    } else if (training && stripe.Admits(hash)) {
      row = stripe.Create(id, hash);
    }
    if (row == RowMap::kNone) return config_.initializer.Fill(id, width, out);
    if (training) {
      RowMap::Header& header = stripe.header(row);
      header.used = ticks;
      header.count += header.count < UINT32_MAX ? 1 : 0;
    }
    std::memcpy(out, stripe.content(row), width * sizeof(float));
  });
}

Table::OnMissing Table::on_missing_gradient() const {
  return config_.min_count <= 1 && config_.probability == 1 ? OnMissing::kCreate
                                                            : OnMissing::kIgnore;
}

void Table::Apply(double now, const int64_t* ids, size_t count, const float* gradients,
                  const StepValues& step, std::vector<size_t>* lost) {
  Apply(now, *Prepare(ids, count, on_missing_gradient(), /*within_budget=*/false), gradients, step,
        lost);
}

void Table::Apply(double now, const TableBatch& batch, const float* gradients,
                  const StepValues& step, std::vector<size_t>* lost) {
  Apply(now, batch, gradients, step, on_missing_gradient() == OnMissing::kCreate, lost);
}

void Table::Replay(double now, const int64_t* ids, size_t count, const float* gradients,
                   const StepValues& step) {
  const auto batch = Prepare(ids, count, OnMissing::kCreate, /*within_budget=*/false);
  Apply(now, *batch, gradients, step, /*creates_all=*/true, nullptr);
}

void Table::Apply(double now, const TableBatch& batch, const float* gradients,
                  const StepValues& step, bool creates_all, std::vector<size_t>* lost) {
  const uint32_t ticks = Ticks(now);
  const size_t width = config_.width;
  optimizer_.BeginStep(step);
  ForEach(batch, content_floats(), [&](Stripe& stripe, size_t index, int64_t id, uint64_t hash) {
    RowMap::Row row = stripe.Find(id, hash);
    if (row == RowMap::kNone && creates_all) {
      row = stripe.Create(id, hash);
      if (row != RowMap::kNone) stripe.header(row).used = ticks;
    }
    if (row == RowMap::kNone) {
      ++stripe.stats().lost_updates;
      if (lost != nullptr) lost->push_back(index);
      return;
    }
    ++stripe.stats().updates;
    stripe.Step(row, gradients + index * width, step);
  });
}

void Table::Sweep(double now) {
  for (const auto& stripe : stripes_) stripe->Sweep(Ticks(now));
}

void Table::EvictExcess() {
  if (config_.max_rows == 0 || row_count() < config_.max_rows + used_stripes_) return;
  // Stripes take turns, so that each loses the same number of rows.
  for (bool evicts = true; evicts;) {
    evicts = false;
    for (const auto& stripe : stripes_) {
      const std::lock_guard<std::mutex> lock(stripe->mutex);
      evicts = stripe->EvictExcess() || evicts;
    }
  }
}

size_t Table::EditFloats(EditKind kind, const TableConfig& config) {
  switch (kind) {
    case EditKind::kRestore:
      return ContentFloats(config);
    case EditKind::kReplace:
    case EditKind::kUpsert:
      return config.width;
    case EditKind::kRemove:
    case EditKind::kClear:
      break;
  }
  return 0;
}

void Table::Edit(const TableEdit& edit) {
  switch (edit.kind) {
    case EditKind::kRestore:
      return WriteRows({edit.count, 0, edit.ids, edit.used, edit.counts, edit.content, nullptr});
    case EditKind::kReplace: {
      const SavedRows rows = NewRows(edit.now, edit.ids, edit.count, edit.content);
      return WriteRows({edit.count, 0, edit.ids, rows.used.data(), rows.counts.data(),
                        rows.content.data(), nullptr});
    }
    case EditKind::kUpsert:
      return WriteValues(edit);
    case EditKind::kRemove:
      return RemoveRows(edit.ids, edit.count);
    case EditKind::kClear:
      for (const auto& stripe : stripes_) {
        const std::lock_guard<std::mutex> lock(stripe->mutex);
        stripe->Clear();
      }
  }
}

void Table::WriteRow(const RowMap::Header& header, const float* content, bool keeps_limit) {
  const uint64_t hash = MixId(header.id);
  Stripe& stripe = StripeWith(hash);
  const std::lock_guard<std::mutex> lock(stripe.mutex);
  stripe.Write(header, hash, content, keeps_limit);
}

void Table::WriteRows(const SavedRowsView& rows) {
  for (size_t i = 0; i < rows.count; ++i) {
    WriteRow({rows.ids[i], rows.used[i], rows.counts[i]}, rows.content + i * content_floats(),
             /*keeps_limit=*/true);
  }
}

void Table::WriteValues(const TableEdit& edit) {
  for (size_t i = 0; i < edit.count; ++i) {
    const uint64_t hash = MixId(edit.ids[i]);
    Stripe& stripe = StripeWith(hash);
    const std::lock_guard<std::mutex> lock(stripe.mutex);
    stripe.WriteValue(edit.ids[i], hash, Ticks(edit.now), edit.content + i * config_.width);
  }
}

void Table::RemoveRows(const int64_t* ids, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const uint64_t hash = MixId(ids[i]);
    Stripe& stripe = StripeWith(hash);
    const std::lock_guard<std::mutex> lock(stripe.mutex);
    const RowMap::Row row = stripe.Find(ids[i], hash);
    if (row != RowMap::kNone) stripe.Remove(row);
  }
}

void Table::Find(const TableBatch& batch, uint8_t* found, float* rows) {
  const size_t width = config_.width;
  const size_t floats = rows == nullptr ? 0 : width;
  ForEach(batch, floats, [&](Stripe& stripe, size_t index, int64_t id, uint64_t hash) {
    const RowMap::Row row = stripe.Find(id, hash);
    found[index] = row == RowMap::kNone ? 0 : 1;
    if (rows == nullptr) return;
    float* const out = rows + index * width;
    if (row == RowMap::kNone) return config_.initializer.Fill(id, width, out);
    stripe.CatchUp(row);
    std::memcpy(out, stripe.content(row), width * sizeof(float));
  });
}

// The cursor is the number of a stripe, and below it (32 bits) the number of a row.
bool Table::ScanRows(size_t max_rows, uint64_t* cursor, SavedRows* rows) {
  const size_t before = rows->ids.size();
  while (*cursor >> 32 < kStripes) {
    Stripe& stripe = *stripes_[*cursor >> 32];
    const std::lock_guard<std::mutex> lock(stripe.mutex);
    const RowMap& map = stripe.rows();
    auto row = static_cast<RowMap::Row>(*cursor);
    for (; row < map.end(); ++row) {
      if (!map.in_use(row)) continue;
      if (rows->ids.size() - before == max_rows) break;
      stripe.CatchUp(row);  // the reader does not know of the steps
      AppendRow(map, row, content_floats(), rows);
    }
    if (row < map.end()) {
      *cursor = *cursor >> 32 << 32 | row;
      return true;
    }
    *cursor = ((*cursor >> 32) + 1) << 32;
  }
  return rows->ids.size() > before;
}

void Table::ImportRows(const SavedRowsView& rows, int server, int servers) {
  RemoveRows(rows.removed, rows.removed_count);
  for (size_t i = 0; i < rows.count; ++i) {
    if (servers > 1 && ServerOfId(rows.ids[i], servers) != server) continue;
    WriteRow({rows.ids[i], rows.used[i], rows.counts[i]}, rows.content + i * content_floats(),
             /*keeps_limit=*/false);
  }
}

void Table::RetainRows(uint32_t used) {
  constexpr RowMap::Row kRowsAtATime = 1 << 12;  // then lookups have their turn
  for (const auto& stripe : stripes_) {
    for (RowMap::Row row = 0, end = 1; row < end;) {
      const std::lock_guard<std::mutex> lock(stripe->mutex);
      end = stripe->rows().end();
      for (const RowMap::Row stop = std::min(end, row + kRowsAtATime); row < stop; ++row) {
        if (stripe->rows().in_use(row) && stripe->header(row).used != used) stripe->Remove(row);
      }
    }
  }
}

Status Table::ImportRows(const SavedRows& rows) {
  const size_t count = rows.ids.size();
  if (rows.used.size() != count || rows.counts.size() != count ||
      rows.content.size() != count * content_floats()) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("saved rows: expected ", content_floats(), " numbers for each of ", count,
                         ", received ", rows.content.size()));
  }
  ImportRows({count, rows.removed.size(), rows.ids.data(), rows.used.data(), rows.counts.data(),
              rows.content.data(), rows.removed.data()});
  return Status();
}

SavedRows Table::NewRows(double now, const int64_t* ids, size_t count, const float* values) const {
  SavedRows rows;
  rows.ids.assign(ids, ids + count);
  rows.used.assign(count, Ticks(now));
  rows.counts.assign(count, 0);
  rows.content.resize(count * content_floats());
  for (size_t i = 0; i < count; ++i) {
    float* const content = rows.content.data() + i * content_floats();
    std::copy_n(values + i * config_.width, config_.width, content);
    optimizer_.FillSlots(content + config_.width);
  }
  return rows;
}

void Table::BeginSnapshot(bool changed_only) {
  snapshot_step_ = optimizer_.last_step();
  for (const auto& stripe : stripes_) {
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    stripe->snapshot().Begin(changed_only);
  }
}

bool Table::NextSnapshotRows(size_t max_rows, SavedRows* rows) {
  for (const auto& stripe : stripes_) {
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    if (stripe->snapshot().Next(max_rows, rows)) return true;
  }
  return false;
}

void Table::EndSnapshot() {
  for (const auto& stripe : stripes_) {
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    stripe->snapshot().End();
  }
}

double Table::LatestUse(double now) const {
  const uint32_t ticks = Ticks(now);
  bool found = false;
  int32_t latest = INT32_MIN;
  for (const auto& stripe : stripes_) {
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    const RowMap& rows = stripe->rows();
    for (RowMap::Row row = 0; row < rows.end(); ++row) {
      if (!rows.in_use(row)) continue;
      found = true;
      latest = std::max(latest, static_cast<int32_t>(rows.header(row).used - ticks));
    }
  }
  return found ? now + latest / kTicks : now;
}

TableStats Table::stats() const {
  TableStats all;
  for (const auto& stripe : stripes_) {
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    stripe->AddStats(&all);
  }
  return all;
}

}  // namespace tfdist::ps
