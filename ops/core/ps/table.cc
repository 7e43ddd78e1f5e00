#include "core/ps/table.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>

#include "core/ps/row_steps.h"
#include "core/ps/rows.h"
#include "core/ps/sightings.h"
#include "core/ps/unique_ids.h"

namespace tfdist::ps {
namespace {

constexpr size_t kStripes = 16;
constexpr size_t kAhead = 8;     // rows fetched ahead of the one that is worked on
constexpr int kCandidates = 16;  // looked at to evict one
// Rows that are swept while a lock is held.
constexpr Rows::Number kSweptAtOnce = 10000;
constexpr double kTicks = 16;  // per second; they begin anew after eight years
constexpr uint32_t kMaxWidth = 1 << 16;

size_t StripeOf(uint64_t hash) { return hash >> 40 & (kStripes - 1); }
uint32_t Ticks(double seconds) {
  return static_cast<uint32_t>(static_cast<uint64_t>(seconds * kTicks));
}

// One bit for each row.
class Bits {
 public:
  Bits() = default;
  explicit Bits(std::vector<uint64_t> words) : words_(std::move(words)) {}

  bool Get(uint32_t row) const {
    return row / 64 < words_.size() && (words_[row / 64] >> row % 64 & 1) != 0;
  }
  void Set(uint32_t row) {
    if (row / 64 >= words_.size()) words_.resize(row / 64 + 1);
    words_[row / 64] |= uint64_t{1} << row % 64;
  }
  void Clear(uint32_t row) {
    if (row / 64 < words_.size()) words_[row / 64] &= ~(uint64_t{1} << row % 64);
  }
  // The first that is set, from `row` on; all below it are not set any more.
  uint32_t Next(uint32_t row) const {
    for (size_t word = row / 64; word < words_.size(); ++word) {
      const uint64_t rest =
          word == row / 64 ? words_[word] & ~uint64_t{0} << row % 64 : words_[word];
      if (rest != 0) return static_cast<uint32_t>(word * 64 + __builtin_ctzll(rest));
    }
    return Rows::kNone;
  }
  size_t bytes() const { return words_.capacity() * sizeof(uint64_t); }

 private:
  std::vector<uint64_t> words_;
};

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
  }
  std::abort();  // an unknown rule is refused before it gets here
}
size_t FloatsOf(const TableConfig& config) {
  if (config.rule == RowRule::kRowwiseAdagrad) return config.width + 1;
  if (config.rule == RowRule::kExactAdam) return 3 * size_t{config.width} + 1;
  return config.width * (1 + SlotsOf(config));
}

template <typename T>
void AppendTo(std::vector<T>* all, const std::vector<T>& more) {
  all->insert(all->end(), more.begin(), more.end());
}

void Append(const SavedRows& more, SavedRows* rows) {
  AppendTo(&rows->ids, more.ids);
  AppendTo(&rows->used, more.used);
  AppendTo(&rows->counts, more.counts);
  AppendTo(&rows->content, more.content);
  AppendTo(&rows->removed, more.removed);
}

Status Expected(const char* what, double received) {
  return Status(StatusCode::kInvalidArgument,
                StrCat("a table: expected ", what, ", received ", received));
}

}  // namespace

struct Table::Stripe {
  Stripe(const TableConfig& config, size_t content_floats)
      : rows(content_floats * sizeof(float)), random(config.initializer.seed) {
    if (config.min_count > 1) sightings = std::make_unique<Sightings>();
  }

  std::mutex mutex;
  Rows rows;
  std::unique_ptr<Sightings> sightings;  // of ids without a row
  uint64_t random;
  TableStats stats;

  Bits changed;                  // since the last copy was begun
  std::vector<int64_t> removed;  // since then
  bool is_saved = false;         // a copy was begun before: `changed` and `removed` mean something
  // The copy that is being taken: the rows it still needs, from `cursor` on, and those kept for it.
  Bits needed;
  uint32_t cursor = 0;
  SavedRows kept;
};

// The ids of a request by stripe.
class Table::Batch {
 public:
  Batch(const int64_t* ids, size_t count) : ids_(ids), hashes_(count), order_(count) {
    for (size_t i = 0; i < count; ++i) {
      hashes_[i] = MixId(ids[i]);
      ++ends_[StripeOf(hashes_[i]) + 1];
    }
    std::partial_sum(ends_.begin(), ends_.end(), ends_.begin());
    std::array<size_t, kStripes> next;
    std::copy_n(ends_.begin(), kStripes, next.begin());
    for (size_t i = 0; i < count; ++i) order_[next[StripeOf(hashes_[i])]++] = i;
  }

  // Calls use(place in the request, id, hash) for each id of a stripe, whose lock is held; it will
  // use so many floats of each row.
  template <typename Use>
  void Each(size_t stripe, const Rows& rows, size_t floats, const Use& use) const {
    const size_t begin = ends_[stripe], end = ends_[stripe + 1];
    for (size_t i = begin; i < end; ++i) {
      if (i + 2 * kAhead < end) rows.PrefetchIndex(hashes_[order_[i + 2 * kAhead]]);
      if (i + kAhead < end) {
        rows.PrefetchRow(hashes_[order_[i + kAhead]], floats * sizeof(float));
      }
      use(order_[i], ids_[order_[i]], hashes_[order_[i]]);
    }
  }
  bool Has(size_t stripe) const { return ends_[stripe] < ends_[stripe + 1]; }

 private:
  const int64_t* const ids_;
  std::vector<uint64_t> hashes_;
  std::vector<size_t> order_;
  std::array<size_t, kStripes + 1> ends_{};
};

Status Table::Create(const TableConfig& config, std::unique_ptr<Table>* out, std::string name) {
  if (config.width == 0 || config.width > kMaxWidth) {
    return Expected("a width from 1 to 65536", config.width);
  }
  if (!(config.probability > 0 && config.probability <= 1)) {
    return Expected("a probability above 0 and up to 1", config.probability);
  }
  if (config.min_count > UINT16_MAX) return Expected("a min_count up to 65535", config.min_count);
  if (!(config.ttl_seconds >= 0)) return Expected("ttl_seconds from 0 on", config.ttl_seconds);
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
  const uint32_t ticks = Ticks(now);
  const Batch batch(ids, count);
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

void Table::Apply(double now, const int64_t* ids, size_t count, const float* gradients,
                  const StepValues& step, std::vector<size_t>* lost) {
  const bool admits_all = config_.min_count <= 1 && config_.probability == 1;
  Apply(now, ids, count, gradients, step, admits_all, lost);
}

void Table::Repeat(double now, const int64_t* ids, size_t count, const float* gradients,
                   const StepValues& step) {
  Apply(now, ids, count, gradients, step, /*makes_all=*/true, nullptr);
}

void Table::Apply(double now, const int64_t* ids, size_t count, const float* gradients,
                  const StepValues& step, bool makes_all, std::vector<size_t>* lost) {
  const uint32_t ticks = Ticks(now);
  if (config_.rule == RowRule::kExactAdam) {
    learning_rate_ = step.learning_rate;
    int64_t last = last_step_;
    while (last < step.step && !last_step_.compare_exchange_weak(last, step.step)) {
    }
  }
  const Batch batch(ids, count);
  for (size_t i = 0; i < kStripes; ++i) {
    if (!batch.Has(i)) continue;
    Stripe* const stripe = stripes_[i].get();
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    batch.Each(i, stripe->rows, content_floats_, [&](size_t place, int64_t id, uint64_t hash) {
      Rows::Number row = stripe->rows.Find(id, hash);
      if (row == Rows::kNone && makes_all) {
        row = Make(stripe, id, hash);
        stripe->rows.head(row).used = ticks;
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
  switch (config_.rule) {
    case RowRule::kElementwise: {
      StepRuns runs{gradient, {content, content}, {}};
      for (size_t i = 0; i < slots_; ++i) runs.slots[i] = {slots + i * width, slots + i * width};
      return Optimize(config_.optimizer, step, 0, DType::kFloat32, width, runs);
    }
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

uint32_t Table::Make(Stripe* stripe, int64_t id, uint64_t hash) {
  const Rows::Number row = stripe->rows.Insert(id, hash);
  float* const content = Content(stripe, row);
  config_.initializer.Fill(id, config_.width, content);
  FillSlots(content + config_.width);
  stripe->changed.Set(row);
  ++stripe->stats.created;
  if (config_.max_rows > 0 &&
      stripe->rows.size() > std::max<uint64_t>(1, config_.max_rows / kStripes)) {
    EvictOne(stripe, row);
  }
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

SavedRows Table::NewRows(double now, const int64_t* ids, size_t count, const float* values) const {
  SavedRows rows;
  rows.ids.assign(ids, ids + count);
  rows.used.assign(count, Ticks(now));
  rows.counts.assign(count, 0);
  rows.content.resize(count * content_floats_);
  for (size_t i = 0; i < count; ++i) {
    float* const content = rows.content.data() + i * content_floats_;
    std::copy_n(values + i * config_.width, config_.width, content);
    FillSlots(content + config_.width);
  }
  return rows;
}

// Of some rows that are taken at random, the one that was used longest ago, or most seldom.
void Table::EvictOne(Stripe* stripe, uint32_t spared) const {
  Rows& rows = stripe->rows;
  Rows::Number victim = Rows::kNone;
  for (int looked = 0; looked < kCandidates;) {
    const auto row =
        static_cast<Rows::Number>(MixId(static_cast<int64_t>(stripe->random++)) % rows.end());
    if (row == spared || !rows.in_use(row)) continue;
    ++looked;
    if (victim == Rows::kNone) {
      victim = row;
      continue;
    }
    const Rows::Head &head = rows.head(row), &worst = rows.head(victim);
    const bool worse = config_.policy == EvictionPolicy::kLru
                           ? static_cast<int32_t>(head.used - worst.used) < 0
                           : head.count < worst.count;
    if (worse) victim = row;
  }
  Erase(stripe, victim);
  ++stripe->stats.evicted_for_room;
}

void Table::Sweep(double now) {
  const uint32_t ticks = Ticks(now);
  for (const auto& stripe : stripes_) {
    for (Rows::Number from = 0; Sweep(ticks, from, stripe.get()); from += kSweptAtOnce) {
    }
  }
}

bool Table::Sweep(uint32_t ticks, uint32_t from, Stripe* stripe) const {
  const std::lock_guard<std::mutex> lock(stripe->mutex);
  Rows& rows = stripe->rows;
  const Rows::Number end = std::min(rows.end(), from + kSweptAtOnce);
  for (Rows::Number row = from; row < end; ++row) {
    if (!rows.in_use(row)) continue;
    const double unused = static_cast<int32_t>(ticks - rows.head(row).used) / kTicks;
    if (config_.ttl_seconds > 0 && unused > config_.ttl_seconds) {
      Erase(stripe, row);
      ++stripe->stats.evicted_by_age;
      continue;
    }
    if (config_.min_norm == 0) continue;
    const float* const value = Content(stripe, row);
    double squares = 0;
    for (size_t i = 0; i < config_.width; ++i) squares += static_cast<double>(value[i]) * value[i];
    if (squares >= config_.min_norm * config_.min_norm) continue;
    Erase(stripe, row);
    ++stripe->stats.evicted_by_norm;
  }
  return end < rows.end();
}

void Table::Erase(Stripe* stripe, uint32_t row) const {
  WillChange(stripe, row);
  stripe->changed.Clear(row);
  if (stripe->is_saved) stripe->removed.push_back(stripe->rows.head(row).id);
  stripe->rows.Erase(row);
}

// Keeps the row for the copy that is being taken.
void Table::WillChange(Stripe* stripe, uint32_t row) const {
  stripe->changed.Set(row);
  if (!stripe->needed.Get(row)) return;
  stripe->needed.Clear(row);
  Keep(stripe, row, &stripe->kept);
}

void Table::Keep(Stripe* stripe, uint32_t row, SavedRows* rows) const {
  const Rows::Head& head = stripe->rows.head(row);
  rows->ids.push_back(head.id);
  rows->used.push_back(head.used);
  rows->counts.push_back(head.count);
  const float* const content = Content(stripe, row);
  rows->content.insert(rows->content.end(), content, content + content_floats_);
}

void Table::BeginSave(bool changed_only) {
  saved_step_ = {learning_rate_, last_step_};
  for (const auto& stripe : stripes_) {
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    stripe->kept = {};
    stripe->cursor = 0;
    Bits changed = std::exchange(stripe->changed, {});
    if (changed_only && stripe->is_saved) {
      stripe->needed = std::move(changed);
      stripe->kept.removed = std::exchange(stripe->removed, {});
    } else {
      stripe->needed = Bits(stripe->rows.in_use());
      stripe->removed.clear();
    }
    stripe->is_saved = true;
  }
}

bool Table::NextSave(size_t most, SavedRows* rows) {
  for (const auto& stripe : stripes_) {
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    if (!stripe->kept.ids.empty() || !stripe->kept.removed.empty()) {
      Append(std::exchange(stripe->kept, {}), rows);
      return true;
    }
    size_t count = 0;
    for (; count < most; ++count) {
      stripe->cursor = stripe->needed.Next(stripe->cursor);
      if (stripe->cursor == Rows::kNone) break;
      stripe->needed.Clear(stripe->cursor);
      Keep(stripe.get(), stripe->cursor, rows);
    }
    if (count > 0) return true;
  }
  return false;
}

// The cursor is a stripe's number above the number of a row.
bool Table::Dump(size_t most, uint64_t* cursor, SavedRows* rows) const {
  const size_t before = rows->ids.size();
  while (*cursor >> 32 < kStripes) {
    Stripe* const stripe = stripes_[*cursor >> 32].get();
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    auto row = static_cast<Rows::Number>(*cursor);
    for (; row < stripe->rows.end(); ++row) {
      if (!stripe->rows.in_use(row)) continue;
      if (rows->ids.size() - before == most) break;
      Keep(stripe, row, rows);
    }
    if (row < stripe->rows.end()) {
      *cursor = *cursor >> 32 << 32 | row;
      return true;
    }
    *cursor = ((*cursor >> 32) + 1) << 32;
  }
  return rows->ids.size() > before;
}

void Table::RestoreStep(const StepValues& step) {
  learning_rate_ = step.learning_rate;
  last_step_ = step.step;
}

Status Table::Restore(const SavedRows& rows) {
  const size_t count = rows.ids.size();
  if (rows.used.size() != count || rows.counts.size() != count ||
      rows.content.size() != count * content_floats_) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("saved rows: expected ", content_floats_, " numbers for each of ", count,
                         ", received ", rows.content.size()));
  }
  Restore({count, rows.removed.size(), rows.ids.data(), rows.used.data(), rows.counts.data(),
           rows.content.data(), rows.removed.data()});
  return Status();
}

void Table::Restore(const SavedRowsView& rows, int server, int servers) {
  for (size_t i = 0; i < rows.removed_count; ++i) {
    const uint64_t hash = MixId(rows.removed[i]);
    Stripe* const stripe = stripes_[StripeOf(hash)].get();
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    const Rows::Number row = stripe->rows.Find(rows.removed[i], hash);
    if (row != Rows::kNone) Erase(stripe, row);
  }
  for (size_t i = 0; i < rows.count; ++i) {
    const int64_t id = rows.ids[i];
    if (servers > 1 && ServerOfId(id, servers) != server) continue;
    const uint64_t hash = MixId(id);
    Stripe* const stripe = stripes_[StripeOf(hash)].get();
    const std::lock_guard<std::mutex> lock(stripe->mutex);
    Rows::Number row = stripe->rows.Find(id, hash);
    if (row == Rows::kNone) row = stripe->rows.Insert(id, hash);
    WillChange(stripe, row);
    stripe->rows.head(row) = {id, rows.used[i], rows.counts[i]};
    std::memcpy(Content(stripe, row), rows.content + i * content_floats_,
                content_floats_ * sizeof(float));
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
