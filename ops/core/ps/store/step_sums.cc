#include "core/ps/store/step_sums.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

namespace tfdist::ps {
namespace {

template <typename T>
void Scale(void* values, size_t count, T factor) {
  auto* v = static_cast<T*>(values);
  for (size_t i = 0; i < count; ++i) v[i] *= factor;
}

// For the dtypes that optimizers support.
void Scale(DType dtype, void* values, size_t count, double factor) {
  if (dtype == DType::kFloat64) return Scale<double>(values, count, factor);
  Scale<float>(values, count, static_cast<float>(factor));
}

// Rounds to nearest, and halves away from zero.
template <typename T>
void DivideRounded(void* values, size_t count, T divisor) {
  auto* v = static_cast<T*>(values);
  for (size_t i = 0; i < count; ++i) {
    const T rest = v[i] % divisor;
    v[i] /= divisor;
    if (2 * std::abs(rest) >= divisor) v[i] += rest > 0 ? 1 : -1;
  }
}

void MakeMean(DType dtype, void* values, size_t count, int contributions) {
  switch (dtype) {
    case DType::kInt32:
      return DivideRounded<int32_t>(values, count, contributions);
    case DType::kInt64:
      return DivideRounded<int64_t>(values, count, contributions);
    default:
      return Divide(dtype, values, count, contributions);
  }
}

// The first contribution becomes the sum; others are added to it.
void AddTo(BlockPtr* sum, BlockPtr values, const Shard& shard) {
  if (*sum == nullptr) {
    *sum = std::move(values);
  } else {
    Add(shard.dtype, (*sum)->data(), (*sum)->data(), values->data(), shard.elements);
  }
}

}  // namespace

NotApplied StepSums::Collect(int worker, std::vector<Update> updates) {
  NotApplied missed;
  for (Update& update : updates) {
    if (!store_->TryWithReclaim([&] { Collect(worker, &update); })) missed.Add(update);
  }
  return missed;
}

void StepSums::Collect(int worker, Update* update) {
  if (update->kind == UpdateKind::kTableRows) return CollectRows(worker, *update);
  Shard* const shard = update->shard;
  const std::lock_guard<std::mutex> lock(shard->mutex);
  ShardSums& sums = shard->sums;
  if (sums.gradient == nullptr && sums.delta == nullptr && sums.assigned == nullptr) {
    const std::lock_guard<std::mutex> touched_lock(mutex_);
    touched_.push_back(shard);
  }
  if (update->kind == UpdateKind::kDelta) {
    return AddTo(&sums.delta, std::move(update->values), *shard);
  }
  if (update->kind == UpdateKind::kAssign) {
    if (sums.assigned != nullptr && sums.assigning_worker < worker) return;
    sums.assigned = std::move(update->values);
    sums.assigning_worker = worker;
    return;
  }
  if (sums.gradient == nullptr || worker < sums.gradient_worker) {
    sums.gradient_worker = worker;
    sums.step = update->step;
  }
  if (update->kind == UpdateKind::kGradient) {
    return AddTo(&sums.gradient, std::move(update->values), *shard);
  }
  if (sums.gradient == nullptr) {
    sums.gradient = store_->pool().Allocate(shard->bytes);
    std::memset(sums.gradient->data(), 0, shard->bytes);
  }
  ScatterAdd(*update, sums.gradient->data());
}

void StepSums::CollectRows(int worker, const Update& update) {
  const size_t width = update.table->config().width;
  const auto* gradient = reinterpret_cast<const float*>(update.values->data());
  const std::lock_guard<std::mutex> lock(mutex_);
  TableSums& sums = table_sums_[update.table_id];
  sums.width = width;
  sums.charge.SetBudget(store_->shared_memory());
  // Memory for all ids comes first: nothing has changed if there is none.
  const size_t max_floats = (sums.ids.ids().size() + update.row_count()) * width;
  const size_t capacity = sums.gradients.capacity();
  if (max_floats > capacity) {
    sums.gradients.reserve(std::max(max_floats, 2 * capacity));
    sums.charge.Grow((sums.gradients.capacity() - capacity) * sizeof(float),
                     /*within_budget=*/false);
  }
  sums.ids.Reserve(update.row_count());
  if (sums.ids.indices().empty() || worker < sums.worker) {
    sums.worker = worker;
    sums.step = update.step;
  }
  const size_t before = sums.ids.indices().size();
  sums.ids.Add(update.row_indices(), update.row_count());
  sums.gradients.resize(sums.ids.ids().size() * width);
  for (size_t i = before; i < sums.ids.indices().size(); ++i, gradient += width) {
    float* const sum = sums.gradients.data() + sums.ids.indices()[i] * width;
    for (size_t j = 0; j < width; ++j) sum[j] += gradient[j];
  }
}

std::pair<std::vector<Shard*>, std::map<uint32_t, TableSums>> StepSums::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {std::exchange(touched_, {}), std::exchange(table_sums_, {})};
}

void StepSums::Drop() {
  const auto taken = Take();
  for (Shard* shard : taken.first) {
    const std::lock_guard<std::mutex> lock(shard->mutex);
    shard->sums = ShardSums();
  }
}

NotApplied StepSums::Close(int contributions, TaskRecord* tasks) {
  NotApplied missed;
  auto taken = Take();
  const std::vector<Shard*>& touched = taken.first;
  std::map<uint32_t, TableSums>& table_sums = taken.second;
  for (Shard* shard : touched) {
    if (!Apply(shard, contributions)) missed.Add(shard->name);
  }
  if (tasks != nullptr && !store_->TryWithReclaim([&] { AddChanged(touched, tasks); })) {
    static const std::string* const log = new std::string("the redo log");
    missed.Add(*log);
    tasks = nullptr;  // a killed server deals its records out again
  }
  std::vector<AppliedRows> applied;
  std::vector<std::vector<int64_t>> ids;  // which `applied` points to
  for (auto& [id, sums] : table_sums) {
    Table* const table = store_->FindTable(id);
    // Tables are never removed, and a replacement has the same width.
    if (table == nullptr || table->config().width != sums.width) std::abort();
    if (contributions != workers_) {
      Scale(DType::kFloat32, sums.gradients.data(), sums.gradients.size(),
            static_cast<double>(workers_) / contributions);
    }
    const bool done = store_->TryWithReclaim([&, &sums = sums] {
      ids.reserve(table_sums.size());
      applied.reserve(table_sums.size());
      std::vector<int64_t> own = sums.ids.ids();
      applied.push_back(ApplyTableRows(table, sums.step, own.size(), own.data(),
                                       sums.gradients.data(), store_->clock().Now()));
      ids.push_back(std::move(own));
    });
    if (!done) missed.Add(table->name());
  }
  log_->Append({}, applied, tasks);
  return missed;
}

void StepSums::AddChanged(const std::vector<Shard*>& touched, TaskRecord* tasks) const {
  std::set<Shard*> changed(touched.begin(), touched.end());
  for (Shard* shard : touched) {
    if (!shard->binding) continue;
    changed.insert(shard->binding->slots.begin(), shard->binding->slots.end());
  }
  tasks->shards.clear();
  for (Shard* shard : changed) tasks->shards.push_back(updater_->Changed(shard));
}

bool StepSums::Apply(Shard* shard, int contributions) {
  ShardSums sums;
  {
    const std::lock_guard<std::mutex> lock(shard->mutex);
    std::swap(sums, shard->sums);
  }
  bool done = true;
  if (sums.assigned != nullptr) updater_->Assign(shard, std::move(sums.assigned));
  if (sums.gradient != nullptr) {
    if (contributions != workers_) {
      Scale(shard->dtype, sums.gradient->data(), shard->elements,
            static_cast<double>(workers_) / contributions);
    }
    done = store_->TryWithReclaim(
        [&] { updater_->ApplyGradient(-1, shard, sums.step, sums.gradient); });
  }
  if (sums.delta != nullptr) {
    MakeMean(shard->dtype, sums.delta->data(), shard->elements, contributions);
    done = store_->TryWithReclaim([&] { updater_->AddDelta(shard, sums.delta); }) && done;
  }
  return done;
}

}  // namespace tfdist::ps
