#include "core/ps/server/schedule.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tfdist::ps {
namespace {

constexpr size_t kSavedHead = 4;       // clock, slowest, dropped pushes, largest lead
constexpr size_t kSavedPerWorker = 4;  // active, joined, clock, dropped pushes

}  // namespace

Schedule::Schedule(const ScheduleOptions& options, TimePoint now)
    : options_(options),
      // Without a bound ssp is async.
      staleness_(options.mode == Mode::kSsp ? static_cast<uint64_t>(options.staleness)
                                            : std::numeric_limits<uint64_t>::max()),
      workers_(options.workers) {
  for (Worker& worker : workers_) worker.active_since = now;
}

void Schedule::Join(int worker, bool new_process) {
  Worker& self = workers_[worker];
  self.waiting = false;
  const bool restarted = new_process && self.joined;
  self.joined = true;
  if (!restarted || sync() || !self.active) return;
  uint64_t others = std::numeric_limits<uint64_t>::max();
  for (const Worker& other : workers_) {
    if (other.active && &other != &self) others = std::min(others, other.clock);
  }
  if (others != std::numeric_limits<uint64_t>::max()) self.clock = others;
  UpdateSlowest();
}

void Schedule::Leave(int worker) {
  if (elastic()) return;
  workers_[worker].active = false;
  workers_[worker].waiting = false;
  UpdateSlowest();
}

void Schedule::StopWaiting(int worker) { workers_[worker].waiting = false; }

Schedule::Verdict Schedule::Push(int worker, uint64_t clock) {
  Worker& self = workers_[worker];
  self.waiting = false;
  if (!sync()) {
    // A dropped worker takes the slowest clock when it pulls again.
    if (self.active) ++self.clock;
    UpdateSlowest();
    return Verdict::kApply;
  }
  // A later clock dates from before a restart of the server.
  if (clock < clock_) {
    ++self.dropped_pushes;
    ++dropped_pushes_;
    return Verdict::kDropLate;
  }
  ++self.clock;
  if (!self.contributed) ++contributions_;
  self.contributed = true;
  UpdateSlowest();
  return Verdict::kCollect;
}

bool Schedule::StepIsComplete() const {
  if (contributions_ == 0) return false;
  if (contributions_ >= options_.num_aggregate) return true;
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const Worker& worker) { return worker.contributed || !worker.active; });
}

int Schedule::contributions() const { return contributions_; }

void Schedule::CloseStep() {
  ++clock_;
  DropStep();
}

void Schedule::DropStep() {
  contributions_ = 0;
  for (Worker& worker : workers_) worker.contributed = worker.waiting = false;
}

bool Schedule::MayRead(int worker, TimePoint now) {
  Worker& self = workers_[worker];
  if (!sync() || elastic() || !self.contributed) return true;
  if (!self.waiting) self.waiting_since = now;
  self.waiting = true;
  return false;
}

bool Schedule::MayPull(int worker, TimePoint now) {
  Worker& self = workers_[worker];
  if (elastic()) return self.came = true;
  if (!self.active) Activate(worker, now);
  if (!self.came) self.active_since = now;
  self.came = true;
  const uint64_t lead = self.clock - slowest_;
  if (sync() ? self.contributed : lead > staleness_) {
    if (!self.waiting) self.waiting_since = now;
    self.waiting = true;
    return false;
  }
  self.waiting = false;
  if (!sync()) largest_lead_ = std::max(largest_lead_, lead);
  return true;
}

void Schedule::Activate(int worker, TimePoint now) {
  Worker& self = workers_[worker];
  self.active = true;
  self.active_since = now;
  if (!sync()) self.clock = slowest_;
  UpdateSlowest();
  if (news_.empty()) news_since_ = now;
  news_.push_back(
      StrCat(options_.NameOf(worker), " is back, at step ", sync() ? clock_ : self.clock));
}

bool Schedule::WaitsFor(const Worker& waiting, const Worker& other) const {
  if (!waiting.waiting || !other.active) return false;
  if (sync()) return waiting.contributed && !other.contributed;
  return waiting.clock > other.clock && waiting.clock - other.clock > staleness_;
}

TimePoint Schedule::Deadline(const Worker& other) const {
  const Clock::duration patience =
      DurationOf(other.came ? options_.worker_timeout_seconds : options_.start_timeout_seconds);
  TimePoint deadline = TimePoint::max();
  for (const Worker& worker : workers_) {
    if (!WaitsFor(worker, other)) continue;
    deadline = std::min(deadline, std::max(worker.waiting_since, other.active_since) + patience);
  }
  return deadline;
}

std::vector<std::string> Schedule::CheckTime(TimePoint now) {
  std::vector<std::string> lines = std::exchange(news_, {});
  std::vector<int> late;
  for (int i = 0; i < options_.workers; ++i) {
    if (Deadline(workers_[i]) <= now) late.push_back(i);
  }
  for (const int i : late) {
    Worker& worker = workers_[i];
    worker.active = false;
    worker.waiting = false;
    lines.push_back(
        worker.came
            ? StrCat(options_.NameOf(i), " is dropped: others have waited for it longer than ",
                     options_.worker_timeout_seconds, " s, at step ",
                     sync() ? clock_ : worker.clock)
            : StrCat(options_.NameOf(i), " is dropped: others have waited for it longer than ",
                     options_.start_timeout_seconds, " s, and it has not come yet"));
  }
  UpdateSlowest();
  return lines;
}

TimePoint Schedule::NextDeadline() const {
  TimePoint next = news_.empty() ? TimePoint::max() : news_since_;
  for (const Worker& worker : workers_) next = std::min(next, Deadline(worker));
  return next;
}

void Schedule::UpdateSlowest() {
  uint64_t slowest = std::numeric_limits<uint64_t>::max();
  for (const Worker& worker : workers_) {
    if (worker.active) slowest = std::min(slowest, worker.clock);
  }
  if (slowest != std::numeric_limits<uint64_t>::max()) slowest_ = slowest;
}

uint64_t Schedule::clock() const { return sync() ? clock_ : slowest_; }
uint64_t Schedule::clock_of(int worker) const { return workers_[worker].clock; }
uint64_t Schedule::slowest_clock() const { return slowest_; }
uint64_t Schedule::dropped_pushes() const { return dropped_pushes_; }
uint64_t Schedule::dropped_pushes_of(int worker) const { return workers_[worker].dropped_pushes; }
uint64_t Schedule::largest_lead() const { return largest_lead_; }

std::vector<uint64_t> Schedule::Save() const {
  std::vector<uint64_t> saved = {clock_, slowest_, dropped_pushes_, largest_lead_};
  for (const Worker& worker : workers_) {
    saved.insert(saved.end(), {uint64_t{worker.active}, uint64_t{worker.joined}, worker.clock,
                               worker.dropped_pushes});
  }
  return saved;
}

void Schedule::Restore(const std::vector<uint64_t>& saved) {
  if (saved.size() < kSavedHead) return;
  clock_ = saved[0];
  slowest_ = saved[1];
  dropped_pushes_ = saved[2];
  largest_lead_ = saved[3];
  contributions_ = 0;
  // The job may have grown or shrunk since; new ranks start at the slowest clock.
  const size_t known = (saved.size() - kSavedHead) / kSavedPerWorker;
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    const TimePoint since = worker.active_since;
    worker = Worker();
    worker.active_since = since;
    worker.clock = sync() ? 0 : slowest_;
    if (i >= known) continue;
    const uint64_t* const values = saved.data() + kSavedHead + i * kSavedPerWorker;
    worker.active = values[0] != 0;
    worker.joined = values[1] != 0;
    worker.clock = values[2];
    worker.dropped_pushes = values[3];
  }
  UpdateSlowest();
}

}  // namespace tfdist::ps
