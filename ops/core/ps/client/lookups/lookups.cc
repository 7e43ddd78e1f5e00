#include "core/ps/client/lookups/lookups.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "core/base/clock.h"

namespace tfdist::ps {
namespace {

constexpr double kServedTicks = 16;      // per second: the steps of the cache of served lookups
constexpr double kMaxPrefetchWait = 60;  // seconds, until the prefetch before it is used

uint64_t ServedTick() {
  const std::chrono::duration<double> now = Clock::now().time_since_epoch();
  return static_cast<uint64_t>(now.count() * kServedTicks);
}

// Calls `done` when all parts are done, with the first failure.
class Parts {
 public:
  Parts(size_t count, Done done) : left_(count), done_(std::move(done)) {}

  void End(const Status& status) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (status_.ok()) status_ = status;
      if (--left_ > 0) return;
    }
    done_(status_);
  }

 private:
  std::mutex mutex_;
  size_t left_;
  Status status_;
  const Done done_;
};

}  // namespace

Lookups::Lookups(const TableDirectory* directory, BlockPool* pool, Submit submit,
                 Prefetches::Later later, double timeout_seconds)
    : directory_(directory),
      pool_(pool),
      submit_(std::move(submit)),
      prefetches_([this](std::vector<TableLookup> lookups, bool training,
                         Done done) { Fetch(std::move(lookups), training, std::move(done)); },
                  std::move(later), std::min(timeout_seconds, kMaxPrefetchWait), pool),
      groups_([this](std::vector<TableLookup> lookups, bool training, Done done) {
        Lookup(std::move(lookups), training, std::move(done));
      }) {}

Status Lookups::Check(const std::vector<TableLookup>& lookups) const {
  for (const TableLookup& lookup : lookups) {
    if (directory_->Has(lookup.table)) continue;
    return Status(StatusCode::kInvalidArgument,
                  StrCat("a lookup in table ", lookup.table, ", which was not added"));
  }
  return Status();
}

void Lookups::Lookup(std::vector<TableLookup> lookups, bool training, Done done) {
  if (Status s = Check(lookups); !s.ok()) return done(s);
  if (!prefetches_.any()) return Fetch(std::move(lookups), training, std::move(done));
  const auto parts = std::make_shared<Parts>(lookups.size() + 1, std::move(done));
  std::vector<TableLookup> rest;
  for (TableLookup& lookup : lookups) {
    const bool taken =
        prefetches_.Take(lookup, training, [this, lookup, training, parts](const Status& status) {
          if (status.ok()) return parts->End(status);
          Fetch({lookup}, training, [parts](const Status& again) { parts->End(again); });
        });
    if (!taken) rest.push_back(std::move(lookup));
  }
  const size_t fetched = rest.size();
  const auto end = [parts, fetched](const Status& status) {
    for (size_t i = 0; i <= fetched; ++i) parts->End(status);
  };
  if (rest.empty()) return end(Status());
  Fetch(std::move(rest), training, end);
}

void Lookups::LookupBatched(const GroupKey& key, const LookupGroups::MemberPtr& member,
                            std::vector<TableLookup> lookups, bool training, Done done) {
  if (Status s = Check(lookups); !s.ok()) return done(s);
  groups_.Add(key, member, std::move(lookups), training, std::move(done));
}

Prefetches::BatchPtr Lookups::MakePrefetch(uint64_t owner, std::vector<TableLookup> lookups,
                                           bool training, Status* status) const {
  *status = Check(lookups);
  if (!status->ok()) return nullptr;
  std::vector<size_t> widths;
  for (const TableLookup& lookup : lookups) {
    widths.push_back(directory_->config(lookup.table).width);
  }
  return Prefetches::Make(owner, std::move(lookups), widths, training);
}

void Lookups::Serve(std::vector<TableLookup> lookups, Done done) {
  if (Status s = Check(lookups); !s.ok()) return done(s);
  Request(std::move(lookups), /*training=*/false, &caches_, ServedTick(), std::move(done));
}

void Lookups::Fetch(std::vector<TableLookup> lookups, bool training, Done done) {
  // An evaluation does not use the caches: it makes no steps, after which rows would be fetched
  // again.
  Request(std::move(lookups), training, training ? &caches_ : nullptr, prefetches_.step(),
          std::move(done));
}

void Lookups::Request(std::vector<TableLookup> lookups, bool training, const RowCaches* caches,
                      uint64_t step, Done done) {
  const auto start = Clock::now();
  auto operation = std::make_shared<LookupOperation>(
      directory_, pool_, caches, step, std::move(lookups), training,
      [this, start, done = std::move(done)](const Status& status, const LookupCounts& counts) {
        if (status.ok()) {
          const auto spent = Clock::now() - start;
          const std::lock_guard<std::mutex> lock(mutex_);
          stats_.ids += counts.ids;
          stats_.rows += counts.rows;
          stats_.bytes += counts.bytes;
          stats_.nanoseconds += static_cast<uint64_t>(Nanoseconds(spent));
          stats_.cache_lookups += counts.cache_lookups;
          stats_.cache_hits += counts.cache_hits;
        }
        done(status);
      });
  if (!operation->requests().empty()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++stats_.lookups;
  }
  submit_(std::move(operation));
}

Status Lookups::SetCache(int table, uint64_t rows, uint64_t steps) {
  if (Status s = Check({{table, {}, {}}}); !s.ok()) return s;
  caches_.Set(table, directory_->config(table).width, rows, steps);
  return Status();
}

Status Lookups::SetServedCache(int table, uint64_t rows, double seconds) {
  if (Status s = Check({{table, {}, {}}}); !s.ok()) return s;
  // A row of a tick may be older than the ticks since then by almost one.
  const double ticks = seconds * kServedTicks - 1;
  if (!(ticks >= 0)) {
    return InvalidArgument(StrCat("a cache of rows: expected an age of at least ", 1 / kServedTicks,
                                  " s, received ", seconds));
  }
  caches_.Set(table, directory_->config(table).width, rows, static_cast<uint64_t>(ticks));
  return Status();
}

void Lookups::Forget(int table) {
  if (const auto cache = caches_.Find(table)) cache->Clear();
  prefetches_.Forget(table);
}

LookupStats Lookups::stats() const {
  const Prefetches::Counts prefetches = prefetches_.counts();
  const std::lock_guard<std::mutex> lock(mutex_);
  LookupStats all = stats_;
  all.prefetched = prefetches.requested;
  all.prefetch_hits = prefetches.used;
  return all;
}

void Lookups::Close() {
  groups_.Close();
  prefetches_.Close();
}

}  // namespace tfdist::ps
