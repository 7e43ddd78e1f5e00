// Making a table, looking up and updating. Its memory is in table_memory.cc, eviction in
// table_eviction.cc, edits in table_edits.cc, copies of a table and rows that are put in place in
// table_copies.cc.
#include "core/ps/table/table.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "core/ps/optimizers/row_steps.h"
#include "core/ps/table/table_batch.h"
#include "core/ps/table/table_stripe.h"

namespace tfdist::ps {
namespace {

constexpr uint32_t kMaxWidth = 1 << 16;

// How many slots a row has, and how many floats they and its value are.
size_t SlotsOf(const TableConfig& config) {
  switch (config.rule) {
    case RowRule::kElementwise:
      return static_cast<size_t>(SlotCount(config.optimizer));
    case RowRule::kRowwiseAdagrad:
      return 1;
    case RowRule::kGroupFtrl:
      return 2;
    case RowRule::kExactAdam:
      return 3;  // momentum, velocity, and one number: the step that it has come to
    case RowRule::kAdafactor:
      return 1;
    case RowRule::kLamb:
      return 2;
  }
  std::abort();  // an unknown rule is refused before it gets here
}
size_t FloatsOf(const TableConfig& config) {
  if (config.rule == RowRule::kRowwiseAdagrad) return config.width + 1;
  if (config.rule == RowRule::kExactAdam) return 3 * size_t{config.width} + 1;
  return config.width * (1 + SlotsOf(config));
}

Status Expected(const char* what, double received) {
  return Status(StatusCode::kInvalidArgument,
                StrCat("a table: expected ", what, ", received ", received));
}

}  // namespace

Status Table::Create(const TableConfig& config, std::unique_ptr<Table>* out, std::string name) {
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
  out->reset(new Table(config, std::move(name)));
  return Status();
}

Table::Table(const TableConfig& config, std::string name)
    : name_(std::move(name)),
      config_(config),
      slots_(SlotsOf(config)),
      content_floats_(FloatsOf(config)) {
  for (size_t i = 0; i < kStripes; ++i) {
    stripes_.push_back(std::make_unique<Stripe>(config_, content_floats_));
  }
}

Table::~Table() = default;

float* Table::Content(Stripe* stripe, uint32_t row) const {
  return reinterpret_cast<float*>(stripe->rows.content(row));
}

void Table::Lookup(double now, const int64_t* ids, size_t count, bool training, float* rows) {
  const Makes makes = training ? Makes::kAdmitted : Makes::kNone;
  Lookup(now, *Prepare(ids, count, makes, /*within_budget=*/false), training, rows);
}

void Table::Lookup(double now, const Batch& batch, bool training, float* rows) {
  const uint32_t ticks = Ticks(now);
  for (size_t i = 0; i < kStripes; ++i) {
    if (!batch.Has(i)) continue;
    Stripe* const stripe = stripes_[i].get();
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    batch.Each(i, stripe->rows, config_.width, [&](size_t place, int64_t id, uint64_t hash) {
      float* const out = rows + place * config_.width;
      Rows::Number row = stripe->rows.Find(id, hash);
      ++stripe->stats.lookups;
      if (row != Rows::kNone) {
        ++stripe->stats.hits;
        CatchUp(stripe, row);
      } else if (training && Admits(stripe, hash)) {
        row = Make(stripe, id, hash);
      }
      if (row == Rows::kNone) return config_.initializer.Fill(id, config_.width, out);
      if (training) {
        Rows::Head& head = stripe->rows.head(row);
        head.used = ticks;
        head.count += head.count < UINT32_MAX ? 1 : 0;
      }
      std::memcpy(out, Content(stripe, row), config_.width * sizeof(float));
    });
  }
}

Table::Makes Table::apply_makes() const {
  return config_.min_count <= 1 && config_.probability == 1 ? Makes::kAll : Makes::kNone;
}

void Table::Apply(double now, const int64_t* ids, size_t count, const float* gradients,
                  const StepValues& step, std::vector<size_t>* lost) {
  Apply(now, *Prepare(ids, count, apply_makes(), /*within_budget=*/false), gradients, step, lost);
}

void Table::Apply(double now, const Batch& batch, const float* gradients, const StepValues& step,
                  std::vector<size_t>* lost) {
  Apply(now, batch, gradients, step, apply_makes() == Makes::kAll, lost);
}

void Table::Repeat(double now, const int64_t* ids, size_t count, const float* gradients,
                   const StepValues& step) {
  const std::unique_ptr<Batch> batch = Prepare(ids, count, Makes::kAll, /*within_budget=*/false);
  Apply(now, *batch, gradients, step, /*makes_all=*/true, nullptr);
}

void Table::Apply(double now, const Batch& batch, const float* gradients, const StepValues& step,
                  bool makes_all, std::vector<size_t>* lost) {
  const uint32_t ticks = Ticks(now);
  if (config_.rule == RowRule::kExactAdam) {
    learning_rate_ = step.learning_rate;
    int64_t last = last_step_;
    while (last < step.step && !last_step_.compare_exchange_weak(last, step.step)) {
    }
  }
  for (size_t i = 0; i < kStripes; ++i) {
    if (!batch.Has(i)) continue;
    Stripe* const stripe = stripes_[i].get();
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    batch.Each(i, stripe->rows, content_floats_, [&](size_t place, int64_t id, uint64_t hash) {
      Rows::Number row = stripe->rows.Find(id, hash);
      if (row == Rows::kNone && makes_all) {
        row = Make(stripe, id, hash);
        if (row != Rows::kNone) stripe->rows.head(row).used = ticks;
      }
      if (row == Rows::kNone) {
        ++stripe->stats.lost_updates;
        if (lost != nullptr) lost->push_back(place);
        return;
      }
      ++stripe->stats.updates;
      WillChange(stripe, row);
      Step(Content(stripe, row), gradients + place * config_.width, step);
    });
  }
}

// Rows with a gradient in this step have been looked up before it, and so were caught up.
void Table::Step(float* content, const float* gradient, const StepValues& step) const {
  const size_t width = config_.width;
  float* const slots = content + width;
  if (config_.weight_decay > 0) {
    const auto decay = static_cast<float>(config_.weight_decay);
    const auto rate = static_cast<float>(step.learning_rate);
    for (size_t i = 0; i < width; ++i) content[i] -= content[i] * decay * rate;
  }
  switch (config_.rule) {
    case RowRule::kElementwise: {
      StepRuns runs{gradient, {content, content}, {}};
      for (size_t i = 0; i < slots_; ++i) runs.slots[i] = {slots + i * width, slots + i * width};
      return Optimize(config_.optimizer, step, 0, DType::kFloat32, width, runs);
    }
    case RowRule::kAdafactor:
      return StepAdafactor(config_.optimizer, step, width, gradient, content, slots);
    case RowRule::kLamb:
      return StepLamb(config_.optimizer, step, width, gradient, content, slots, slots + width);
    case RowRule::kRowwiseAdagrad:
      return StepRowwiseAdagrad(config_.optimizer, step, width, gradient, content, slots);
    case RowRule::kGroupFtrl:
      return StepGroupFtrl(config_.optimizer, config_.group_penalty, step, width, gradient, content,
                           slots, slots + width);
    case RowRule::kExactAdam: {
      int32_t last = 0;
      std::memcpy(&last, slots + 2 * width, sizeof(last));
      CatchUpAdam(config_.optimizer, step.learning_rate, last, step.step - 1, width, content, slots,
                  slots + width);
      StepRuns runs{gradient, {content, content}, {}};
      for (size_t i = 0; i < 2; ++i) runs.slots[i] = {slots + i * width, slots + i * width};
      Optimize(config_.optimizer, step, 0, DType::kFloat32, width, runs);
      last = static_cast<int32_t>(step.step);
      std::memcpy(slots + 2 * width, &last, sizeof(last));
      return;
    }
  }
}

void Table::CatchUp(Stripe* stripe, uint32_t row) const {
  if (config_.rule != RowRule::kExactAdam) return;
  float* const content = Content(stripe, row);
  float* const slots = content + config_.width;
  int32_t last = 0;
  std::memcpy(&last, slots + 2 * config_.width, sizeof(last));
  const int64_t until = last_step_;
  if (last >= until) return;
  WillChange(stripe, row);
  CatchUpAdam(config_.optimizer, learning_rate_, last, until, config_.width, content, slots,
              slots + config_.width);
  last = static_cast<int32_t>(until);
  std::memcpy(slots + 2 * config_.width, &last, sizeof(last));
}

bool Table::Admits(Stripe* stripe, uint64_t hash) const {
  if (stripe->sightings != nullptr && stripe->sightings->Add(hash) < config_.min_count) {
    return false;
  }
  if (config_.probability == 1) return true;
  const uint64_t random = MixId(static_cast<int64_t>(stripe->random++));
  return static_cast<double>(random >> 11) * 0x1p-53 < config_.probability;
}

// Without memory there is none: kNone. Requests have prepared for it; only where another request
// has evicted rows since may they need more.
uint32_t Table::Make(Stripe* stripe, int64_t id, uint64_t hash) {
  Rows::Number row = Rows::kNone;
  try {
    row = Insert(stripe, id, hash);
  } catch (const std::bad_alloc&) {
    return row;
  }
  float* const content = Content(stripe, row);
  config_.initializer.Fill(id, config_.width, content);
  FillSlots(content + config_.width);
  stripe->changed.Set(row);
  ++stripe->stats.created;
  KeepBound(stripe, row);
  return row;
}

// Throws std::bad_alloc if there is no memory.
uint32_t Table::Insert(Stripe* stripe, int64_t id, uint64_t hash) {
  if (stripe->rows.spare() == 0) Reserve(stripe, 1, /*within_budget=*/false);
  const Rows::Number row = stripe->rows.Insert(id, hash);
  row_count_.fetch_add(1, std::memory_order_relaxed);
  return row;
}

// As they are before the first step.
void Table::FillSlots(float* slots) const {
  const size_t slot_floats = content_floats_ - config_.width;
  if (config_.rule == RowRule::kExactAdam) {
    std::fill_n(slots, slot_floats, 0.0f);
    const auto last = static_cast<int32_t>(last_step_.load());
    std::memcpy(slots + 2 * config_.width, &last, sizeof(last));
  } else {
    const size_t each = slots_ == 0 ? 0 : slot_floats / slots_;
    for (size_t i = 0; i < slots_; ++i) {
      std::fill_n(slots + i * each, each, static_cast<float>(config_.first_slots[i]));
    }
  }
}

TableStats Table::stats() const {
  TableStats all;
  for (const auto& stripe : stripes_) {
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    const TableStats& one = stripe->stats;
    all.rows += stripe->rows.size();
    all.bytes += stripe->rows.bytes() + stripe->changed.bytes() + stripe->needed.bytes() +
                 (stripe->sightings == nullptr ? 0 : stripe->sightings->bytes());
    all.lookups += one.lookups;
    all.hits += one.hits;
    all.created += one.created;
    all.updates += one.updates;
    all.lost_updates += one.lost_updates;
    all.evicted_for_room += one.evicted_for_room;
    all.evicted_by_age += one.evicted_by_age;
    all.evicted_by_norm += one.evicted_by_norm;
  }
  return all;
}

}  // namespace tfdist::ps
