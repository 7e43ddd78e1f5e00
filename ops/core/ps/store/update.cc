#include "core/ps/store/update.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "core/base/checked_size.h"
#include "core/math/cast16.h"
#include "core/ps/optimizers/adaptive_revision.h"

namespace tfdist::ps {
namespace {

// The locks of a shard and of its slots.
class ShardLocks {
 public:
  ShardLocks(Shard* shard, bool hogwild) {
    if (hogwild) return;
    std::vector<Shard*> shards = shard->binding->slots;
    shards.push_back(shard);
    std::sort(shards.begin(), shards.end(),
              [](const Shard* a, const Shard* b) { return a->id < b->id; });
    for (Shard* each : shards) locks_.emplace_back(each->mutex);
  }

 private:
  std::vector<std::unique_lock<std::mutex>> locks_;
};

// The next value of a shard: in the block of the present one if there is no other holder, else in a
// fresh block that replaces it at the end. `copy`: a fresh block begins as a copy.
class NextValue {
 public:
  NextValue() = default;
  NextValue(Shard* shard, bool in_place, bool copy, BlockPool* pool) : shard_(shard) {
    if (in_place || IsSoleOwner(shard->block)) return;
    fresh_ = pool->Allocate(shard->bytes);
    if (copy) std::memcpy(fresh_->data(), shard->block->data(), shard->bytes);
  }

  // From its byte `offset`.
  Run run(size_t offset = 0) const {
    const char* in = shard_->block->data() + offset;
    return {in, const_cast<char*>(fresh_ == nullptr ? in : fresh_->data() + offset)};
  }
  // The same if the value began as a copy.
  Run copied_run(size_t offset) const {
    const Run both = run(offset);
    return {both.out, both.out};
  }
  void Finish() {
    if (fresh_ != nullptr) shard_->block = std::move(fresh_);
    ++shard_->version;
  }

 private:
  Shard* shard_ = nullptr;
  BlockPtr fresh_;
};

// The next values of a bound shard and its slots.
class NextStep {
 public:
  NextStep(Shard* shard, bool in_place, bool copy, BlockPool* pool)
      : shard_(shard), value_(shard, in_place, copy, pool) {
    for (Shard* slot : shard->binding->slots) {
      slots_[count_++] = NextValue(slot, in_place, copy, pool);
    }
  }

  StepRuns runs(const void* gradient) const {
    StepRuns runs{gradient, value_.run(), {}};
    for (size_t i = 0; i < count_; ++i) runs.slots[i] = slots_[i].run();
    return runs;
  }
  StepRuns copied_runs(const void* gradient, size_t offset) const {
    StepRuns runs{gradient, value_.copied_run(offset), {}};
    for (size_t i = 0; i < count_; ++i) runs.slots[i] = slots_[i].copied_run(offset);
    return runs;
  }
  void Finish() {
    value_.Finish();
    for (size_t i = 0; i < count_; ++i) slots_[i].Finish();
    ++shard_->updates;
  }

 private:
  Shard* const shard_;
  NextValue value_;
  std::array<NextValue, kMaxSlots> slots_;
  size_t count_ = 0;
};

// The steps of a shard's optimizer, which adaptive revision replaces by its own. The caller holds
// the locks of the shard.
class Optimizing {
 public:
  // `pulled_sum`: of the worker's pull; null if there is none.
  Optimizing(Shard* shard, const StepValues& step, const Block* pulled_sum, BlockPool* pool)
      : shard_(shard), step_(step), pulled_sum_(pulled_sum) {
    if (shard->revision.sum == nullptr || IsSoleOwner(shard->revision.sum)) return;
    BlockPtr sum = pool->Allocate(shard->bytes);
    std::memcpy(sum->data(), shard->revision.sum->data(), shard->bytes);
    shard->revision.sum = std::move(sum);  // a pull holds the former one
  }

  // One step of `count` elements, from the byte `offset` of the shard.
  void Step(const StepRuns& runs, size_t offset, size_t count) const {
    const Binding& binding = *shard_->binding;
    const Shard::Revision& revision = shard_->revision;
    if (revision.sum == nullptr) {
      return Optimize(binding.config, step_, binding.weight_decay, shard_->dtype, count, runs);
    }
    RevisionRuns revised;
    if (pulled_sum_ != nullptr) revised.pulled_sum = pulled_sum_->data() + offset;
    revised.sum = revision.sum->data() + offset;
    revised.deficit = revision.deficit->data() + offset;
    ReviseAdagrad(binding.config, step_, binding.weight_decay, shard_->dtype, count, runs, revised);
  }

 private:
  Shard* const shard_;
  const StepValues step_;
  const Block* const pulled_sum_;
};

template <typename T>
void ScaleDifference(double factor, void* values, const void* others, size_t count) {
  const auto scale = static_cast<T>(factor);
  auto* x = static_cast<T*>(values);
  const auto* c = static_cast<const T*>(others);
  for (size_t i = 0; i < count; ++i) x[i] = scale * (x[i] - c[i]);
}

// x = factor (x - c). 16-bit floats are computed in float32 and rounded.
void ScaleDifference(DType dtype, double factor, char* x, const char* c, size_t count) {
  if (dtype == DType::kFloat32) return ScaleDifference<float>(factor, x, c, count);
  if (dtype == DType::kFloat64) return ScaleDifference<double>(factor, x, c, count);
  constexpr size_t kSome = 256;
  float wide_x[kSome], wide_c[kSome];
  const size_t bytes = ByteSize(dtype);
  for (size_t first = 0; first < count; first += kSome) {
    const size_t some = std::min(kSome, count - first);
    CastToFloat32(dtype, x + first * bytes, wide_x, some);
    CastToFloat32(dtype, c + first * bytes, wide_c, some);
    ScaleDifference<float>(factor, wide_x, wide_c, some);
    CastFromFloat32(dtype, wide_x, x + first * bytes, some);
  }
}

// Rows of a table as float32, from the dtype in which they were sent.
BlockPtr Widened(BlockPtr values, DType wire, BlockPool* pool) {
  if (wire == DType::kFloat32) return values;
  const size_t count = values->bytes() / ByteSize(wire);
  BlockPtr wide = pool->AllocateAtLeast(count * sizeof(float));
  CastToFloat32(wire, values->data(), reinterpret_cast<float*>(wide->data()), count);
  return wide;
}

// Fails if the gradients of rows do not have the width of the table or of the shard's rows.
Status CheckRowBytes(const Update& update) {
  const Table* const table = update.table;
  const uint64_t width = table == nullptr ? update.width : table->config().width;
  const DType dtype = table == nullptr ? update.shard->dtype : DType::kFloat32;
  const CheckedSize bytes = CheckedSize(update.row_count()) * width * ByteSize(dtype);
  if (update.width == width && width != 0 && bytes.Is(update.values->bytes())) return Status();
  return InvalidArgument(StrCat(table == nullptr ? "shard '" : "table '",
                                table == nullptr ? update.shard->name : table->name(),
                                "': expected ", update.row_count(), " rows of ", width,
                                " elements, received rows of ", update.width, " and ",
                                update.values->bytes(), " bytes"));
}

}  // namespace

std::vector<Update> UpdatesOf(const PushRequest& request, std::vector<BlockPtr> payload,
                              Store* store) {
  std::vector<Update> updates;
  size_t part = 0;
  for (const PushRequest::Entry& entry : request.entries) {
    Update update;
    update.kind = entry.kind;
    const bool of_table = entry.kind == UpdateKind::kTableRows;
    if (of_table) {
      update.table = store->FindTable(entry.shard);
      update.table_id = entry.shard;
    } else {
      update.shard = store->Find(entry.shard);
    }
    update.width = entry.width;
    if (entry.step < request.steps.size()) update.step = request.steps[entry.step];
    if (entry.kind == UpdateKind::kRows || of_table) update.rows = std::move(payload[part++]);
    update.values = Widened(std::move(payload[part++]), of_table ? entry.wire : DType::kFloat32,
                            &store->pool());
    updates.push_back(std::move(update));
  }
  std::stable_partition(updates.begin(), updates.end(),
                        [](const Update& update) { return update.kind == UpdateKind::kAssign; });
  return updates;
}

Status CheckValue(const Shard& shard, const Block& value) {
  if (value.bytes() == shard.bytes) return Status();
  return InvalidArgument(StrCat("shard '", shard.name, "': expected a value of ", shard.bytes,
                                " bytes, received ", value.bytes()));
}

Status CheckUpdates(const std::vector<Update>& updates) {
  for (const Update& update : updates) {
    if (update.shard != nullptr && update.kind != UpdateKind::kRows) {
      if (Status s = CheckValue(*update.shard, *update.values); !s.ok()) return s;
      continue;
    }
    if (Status s = CheckRowBytes(update); !s.ok()) return s;
    if (update.kind != UpdateKind::kRows) continue;
    const int64_t count = static_cast<int64_t>(update.shard->elements / update.width);
    for (uint64_t i = 0; i < update.row_count(); ++i) {
      const int64_t row = update.row_indices()[i];
      if (row >= 0 && row < count) continue;
      return Status(StatusCode::kInvalidArgument,
                    StrCat("shard '", update.shard->name, "': expected row numbers from 0 to ",
                           count - 1, ", received ", row));
    }
  }
  return Status();
}

void ScatterAdd(const Update& update, char* sums) {
  const DType dtype = update.shard->dtype;
  const size_t row_bytes = update.width * ByteSize(dtype);
  for (uint64_t i = 0; i < update.row_count(); ++i) {
    char* const row = sums + update.row_indices()[i] * row_bytes;
    Add(dtype, row, row, update.values->data() + i * row_bytes, update.width);
  }
}

AppliedRows ApplyTableRows(Table* table, const StepValues& step, size_t count, int64_t* ids,
                           float* gradients, double now, const TableBatch* batch) {
  AppliedRows applied{table, now, step, 0, ids, gradients};
  std::vector<size_t> lost;
  lost.reserve(count);
  std::unique_ptr<TableBatch> own;
  if (batch == nullptr) {
    own = table->Prepare(ids, count, table->on_missing_gradient(), /*within_budget=*/false);
    batch = own.get();
  }
  table->Apply(applied.now, *batch, gradients, step, &lost);
  std::sort(lost.begin(), lost.end());
  const size_t width = table->config().width;
  auto next_lost = lost.begin();
  for (size_t i = 0; i < count; ++i) {
    if (next_lost != lost.end() && *next_lost == i) {
      ++next_lost;
      continue;
    }
    if (i > applied.count) {
      ids[applied.count] = ids[i];
      std::copy_n(gradients + i * width, width, gradients + applied.count * width);
    }
    ++applied.count;
  }
  return applied;
}

NotApplied Updater::Apply(const Pusher& pusher, std::vector<Update> updates, TaskRecord* tasks) {
  std::unique_lock<std::mutex> turn(turns_, std::defer_lock);
  if (!log_->is_open()) tasks = nullptr;
  if (tasks != nullptr) turn.lock();
  NotApplied missed;
  std::vector<AppliedRows> applied;
  for (Update& update : updates) {
    const bool done = store_->TryWithReclaim([&] {
      applied.reserve(updates.size());
      Apply(static_cast<int>(pusher.worker), &update, &applied);
    });
    if (!done) missed.Add(update);
  }
  if (tasks != nullptr) AddChanged(updates, tasks);
  log_->Append(pusher, applied, tasks);
  if (tasks != nullptr) tasks->shards.clear();  // which hold values that the next update replaces
  return missed;
}

void Updater::AddChanged(const std::vector<Update>& updates, TaskRecord* tasks) const {
  std::map<Shard*, const Update*> changed;  // null: the whole
  for (const Update& update : updates) {
    if (update.shard == nullptr) continue;
    const bool of_gradient =
        update.kind == UpdateKind::kGradient || update.kind == UpdateKind::kRows;
    const bool of_rows = update.kind == UpdateKind::kRows && update.row_count() > 0 &&
                         LeavesZeroGradientsAlone(update.shard->binding->config,
                                                  update.shard->binding->weight_decay);
    std::vector<Shard*> shards = {update.shard};
    if (of_gradient) {
      const std::vector<Shard*>& slots = update.shard->binding->slots;
      shards.insert(shards.end(), slots.begin(), slots.end());
    }
    for (Shard* shard : shards) {
      const auto [known, is_new] = changed.emplace(shard, of_rows ? &update : nullptr);
      if (!is_new) known->second = nullptr;
    }
  }
  for (const auto& [shard, rows] : changed) {
    ChangedShard one = Changed(shard);
    if (rows != nullptr) {
      one.rows.assign(rows->row_indices(), rows->row_indices() + rows->row_count());
      one.width = rows->width;
    }
    tasks->shards.push_back(std::move(one));
  }
}

ChangedShard Updater::Changed(Shard* shard) const {
  ChangedShard changed;
  changed.shard = shard;
  changed.name = shard->name;
  changed.dtype = shard->dtype;
  changed.elements = shard->elements;
  std::unique_lock<std::mutex> lock(shard->mutex, std::defer_lock);
  if (!options_.hogwild) lock.lock();
  changed.value = shard->block;
  return changed;
}

void Updater::Apply(int worker, Update* update, std::vector<AppliedRows>* applied) {
  switch (update->kind) {
    case UpdateKind::kGradient:
      return ApplyGradient(worker, update->shard, update->step, update->values);
    case UpdateKind::kRows:
      return ApplyRows(worker, *update);
    case UpdateKind::kDelta:
      return AddDelta(update->shard, update->values);
    case UpdateKind::kAssign:
      return Assign(update->shard, std::move(update->values));
    case UpdateKind::kTableRows:
      applied->push_back(ApplyTableRows(update->table, update->step, update->row_count(),
                                        update->row_indices(),
                                        reinterpret_cast<float*>(update->values->data()),
                                        store_->clock().Now(), update->batch.get()));
      return;
  }
}

Status NotApplied::status() const {
  return Status(StatusCode::kResourceExhausted,
                StrCat("out of memory: a push was applied, but not to '", *first_, "'",
                       count_ > 1 ? StrCat(" and ", count_ - 1, " more") : "",
                       ", for which the system gives no more memory"));
}

void ReserveMemory(bool replaces_blocks, BlockPool* pool, std::vector<Update>* updates,
                   const std::string** table) {
  // At the end, these blocks go back to the pool, from which the updates allocate.
  std::vector<BlockPtr> spare;
  const auto reserve_for = [&](Shard* shard) {
    const std::lock_guard<std::mutex> lock(shard->mutex);
    const BlockPtr& sum = shard->revision.sum;
    if (!IsSoleOwner(shard->block)) spare.push_back(pool->AllocateWithinBudget(shard->bytes));
    if (sum != nullptr && !IsSoleOwner(sum)) {
      spare.push_back(pool->AllocateWithinBudget(shard->bytes));
    }
  };
  for (Update& update : *updates) {
    if (update.table != nullptr) {
      *table = &update.table->name();
      update.batch =
          update.table->Prepare(update.row_indices(), update.row_count(),
                                update.table->on_missing_gradient(), /*within_budget=*/true);
      *table = nullptr;
    } else if (replaces_blocks && update.kind != UpdateKind::kAssign) {
      reserve_for(update.shard);
      if (update.kind == UpdateKind::kDelta || !update.shard->binding) continue;
      for (Shard* slot : update.shard->binding->slots) reserve_for(slot);
    }
  }
}

void Updater::ApplyGradient(int worker, Shard* shard, const StepValues& step,
                            const BlockPtr& gradient) {
  const ShardLocks locks(shard, options_.hogwild);
  NextStep next(shard, options_.hogwild, /*copy=*/false, pool_);
  const Optimizing optimizing(shard, Delayed(worker, *shard, step),
                              PulledBy(worker, *shard, Compensation::kAdaptiveRevision), pool_);
  if (const Block* then = PulledBy(worker, *shard, Compensation::kDcAsgd)) {
    CompensateDelay(shard->dtype, shard->elements, options_.compensation_lambda,
                    shard->block->data(), then->data(), gradient->data());
  }
  optimizing.Step(next.runs(gradient->data()), 0, shard->elements);
  next.Finish();
}

void Updater::ApplyRows(int worker, const Update& update) {
  Shard* const shard = update.shard;
  const Binding& binding = *shard->binding;
  if (!LeavesZeroGradientsAlone(binding.config, binding.weight_decay)) {
    const BlockPtr dense = pool_->Allocate(shard->bytes);
    std::memset(dense->data(), 0, dense->bytes());
    ScatterAdd(update, dense->data());
    return ApplyGradient(worker, shard, update.step, dense);
  }
  // Sorted, gradients of the same row are adjacent; they are added up in the first of them.
  std::vector<uint64_t> order(update.row_count());
  std::iota(order.begin(), order.end(), 0);
  const int64_t* const indices = update.row_indices();
  std::sort(order.begin(), order.end(), [indices](uint64_t a, uint64_t b) {
    return std::pair(indices[a], a) < std::pair(indices[b], b);
  });

  const ShardLocks locks(shard, options_.hogwild);
  const size_t row_bytes = update.width * ByteSize(shard->dtype);
  const Block* const then = PulledBy(worker, *shard, Compensation::kDcAsgd);
  NextStep next(shard, options_.hogwild, /*copy=*/true, pool_);
  const Optimizing optimizing(shard, Delayed(worker, *shard, update.step),
                              PulledBy(worker, *shard, Compensation::kAdaptiveRevision), pool_);
  for (size_t i = 0; i < order.size();) {
    char* const gradient = update.values->data() + order[i] * row_bytes;
    const int64_t index = indices[order[i]];
    for (++i; i < order.size() && indices[order[i]] == index; ++i) {
      Add(shard->dtype, gradient, gradient, update.values->data() + order[i] * row_bytes,
          update.width);
    }
    const size_t offset = index * row_bytes;
    if (then != nullptr) {
      CompensateDelay(shard->dtype, update.width, options_.compensation_lambda,
                      shard->block->data() + offset, then->data() + offset, gradient);
    }
    optimizing.Step(next.copied_runs(gradient, offset), offset, update.width);
  }
  next.Finish();
}

void Updater::AddDelta(Shard* shard, const BlockPtr& delta) {
  std::unique_lock<std::mutex> lock(shard->mutex, std::defer_lock);
  if (!options_.hogwild) lock.lock();
  NextValue next(shard, options_.hogwild, /*copy=*/false, pool_);
  const Run run = next.run();
  Add(shard->dtype, run.out, run.in, delta->data(), shard->elements);
  next.Finish();
}

void Updater::Attract(Shard* shard, double alpha, const BlockPtr& values, bool moves) {
  std::unique_lock<std::mutex> lock(shard->mutex, std::defer_lock);
  if (!options_.hogwild) lock.lock();
  ScaleDifference(shard->dtype, alpha, values->data(), shard->block->data(), shard->elements);
  if (!moves) return;
  NextValue next(shard, options_.hogwild, /*copy=*/false, pool_);
  const Run run = next.run();
  Add(shard->dtype, run.out, run.in, values->data(), shard->elements);
  next.Finish();
}

void Updater::Assign(Shard* shard, BlockPtr value) {
  if (options_.hogwild) {
    std::memcpy(shard->block->data(), value->data(), shard->bytes);
  } else {
    const std::lock_guard<std::mutex> lock(shard->mutex);
    shard->block = std::move(value);
  }
  ++shard->version;
}

StepValues Updater::Delayed(int worker, const Shard& shard, StepValues step) const {
  if (options_.compensation != Compensation::kAdaDelay || worker < 0) return step;
  const uint64_t updates = shard.updates;
  const double delay = static_cast<double>(updates - shard.seen[worker].updates);
  const double time = static_cast<double>(std::max<uint64_t>(updates, 1));
  step.learning_rate *= std::sqrt(time / (time + delay));
  return step;
}

const Block* Updater::PulledBy(int worker, const Shard& shard, Compensation compensation) const {
  if (options_.compensation != compensation || worker < 0) return nullptr;
  return shard.seen[worker].block.get();
}

}  // namespace tfdist::ps
