// The steps of training: pulls and pushes, and what a restart of the server has to know of them.
#include <algorithm>
#include <new>
#include <utility>

#include "core/ps/server/service.h"

namespace tfdist::ps {
namespace {

constexpr int64_t kMostParked = 1024;  // pulls of one worker
constexpr uint64_t kProgressVersion = 3;
constexpr size_t kProgressHead = 3;  // version, workers, shards
// Whether a process came, which, its last push, dropped; whose rows came last, with which push; and
// whose edit of rows, and which.
constexpr size_t kProgressPerWorker = 8;

// Whether a record of a log comes after what is known of its worker, which then becomes known.
bool IsNewer(const Pusher& pusher, uint64_t* process, uint64_t* sequence) {
  if (*process == pusher.process && *sequence >= pusher.sequence) return false;
  *process = pusher.process;
  *sequence = pusher.sequence;
  return true;
}

}  // namespace

uint64_t Service::ClockFor(int worker) const {
  return sync() ? schedule_.clock() : schedule_.clock_of(worker);
}

std::optional<Answer> Service::Do(Caller* caller, uint64_t number, const PullRequest& pull,
                                  Incoming*) {
  const int rank = caller->worker;
  const auto sharing = store_->Share();
  Lock lock(schedule_mutex_);
  const auto parked = std::count_if(parked_.begin(), parked_.end(), [rank](const Parked& parked) {
    return parked.caller.worker == rank;
  });
  if (parked >= kMostParked) {
    return Refuse(*caller, number,
                  Status(StatusCode::kFailedPrecondition,
                         StrCat("a pull, while ", parked, " others wait for their answers")));
  }
  if (pull.begins_step) {
    const bool returns = !schedule_.is_active(rank);
    const bool waits = std::any_of(parked_.begin(), parked_.end(), [rank](const Parked& parked) {
      return parked.caller.worker == rank && parked.pull.begins_step;
    });
    if (waits) {
      return Refuse(*caller, number,
                    Status(StatusCode::kFailedPrecondition,
                           "a pull that begins a step, while another one waits for its answer"));
    }
    const bool may_pull = schedule_.MayPull(rank, Clock::now());
    if (!may_pull) parked_.push_back({*caller, number, pull});
    if (!may_pull || returns) Arm(schedule_.NextDeadline());
    if (returns) {
      lock.unlock();
      reducer_.Returned(rank);
      lock.lock();
    }
    if (!may_pull) return std::nullopt;
    trace_.Add(Trace::kPull, rank, ClockFor(rank), schedule_.slowest_clock());
  } else if (!schedule_.MayRead(rank, Clock::now())) {
    parked_.push_back({*caller, number, pull});
    Arm(schedule_.NextDeadline());
    return std::nullopt;
  }
  const uint64_t clock = ClockFor(rank);
  if (!sync()) lock.unlock();
  return Gather(*caller, number, pull, clock);
}

Answer Service::Gather(const Caller& caller, uint64_t number, const PullRequest& pull,
                       uint64_t clock) {
  PullReply reply{clock, {}};
  std::vector<BlockPtr> payload;
  uint64_t bytes = 0;
  reply.versions.reserve(pull.entries.size());
  for (const PullRequest::Entry& entry : pull.entries) {
    Shard* const shard = store_->Find(entry.shard);
    if (shard == nullptr) {
      return Refuse(caller, number,
                    Status(StatusCode::kInvalidArgument,
                           StrCat("there is no shard ", entry.shard, " to pull")));
    }
    Lock lock(shard->mutex, std::defer_lock);
    if (!options_.hogwild) lock.lock();
    reply.versions.push_back(shard->version);
    if (entry.version != reply.versions.back()) {
      payload.push_back(shard->block);
      bytes += shard->bytes;
    }
    if (pull.begins_step && shard->binding && !shard->seen.empty()) {
      Shard::Seen& seen = shard->seen[caller.worker];
      seen.updates = shard->updates;
      if (options_.compensation == Compensation::kDcAsgd) seen.block = shard->block;
    }
    if (bytes > kMaxPayloadBytes) {
      return Refuse(caller, number,
                    Status(StatusCode::kInvalidArgument,
                           StrCat("a pull of more than ", kMaxPayloadBytes, " bytes")));
    }
  }
  ++pulls_;
  return OkAnswer(number, reply, std::move(payload));
}

void Service::Release(Lock* lock) {
  if (parked_.empty()) return;
  const TimePoint now = Clock::now();
  std::list<Parked> ready;
  for (auto parked = parked_.begin(); parked != parked_.end();) {
    const auto next = std::next(parked);
    const int rank = parked->caller.worker;
    const bool begins_step = parked->pull.begins_step;
    if (begins_step ? schedule_.MayPull(rank, now) : schedule_.MayRead(rank, now)) {
      parked->clock = ClockFor(rank);
      if (begins_step) trace_.Add(Trace::kPull, rank, parked->clock, schedule_.slowest_clock());
      ready.splice(ready.end(), parked_, parked);
    }
    parked = next;
  }
  Arm(schedule_.NextDeadline());
  if (!sync()) lock->unlock();
  for (const Parked& parked : ready) {
    try {
      outlet_->Deliver(parked.caller.session,
                       Gather(parked.caller, parked.number, parked.pull, parked.clock));
    } catch (const std::bad_alloc&) {  // the worker connects again and asks once more
      outlet_->Disconnect(parked.caller.session);
    }
  }
}

std::optional<Answer> Service::Do(Caller* caller, uint64_t number, const PushRequest& push,
                                  Incoming* request) {
  const int rank = caller->worker;
  Worker& worker = *workers_[rank];
  const auto sharing = store_->Share();
  std::vector<Update> updates = UpdatesOf(push, std::move(request->payload), store_);
  if (Status s = CheckRows(updates); !s.ok()) return Refuse(*caller, number, s);
  if (Status s = CheckLog(); !s.ok()) return Refuse(*caller, number, s);
  ReserveMemory(!options_.hogwild && options_.schedule.mode != Mode::kSync, &store_->pool(),
                &updates, &request->table);
  Pusher pusher{static_cast<uint32_t>(rank), 0, push.sequence};
  {
    const Lock lock(schedule_mutex_);
    if (push.sequence <= worker.sequence) {
      ++repeated_pushes_;
      return OkAnswer(number, PushReply{push.sequence == worker.sequence && worker.dropped});
    }
    worker.sequence = push.sequence;
    worker.dropped = false;
    if (push.sequence <= worker.rows_sequence) {
      updates.erase(std::remove_if(updates.begin(), updates.end(),
                                   [](const Update& update) { return update.table != nullptr; }),
                    updates.end());
    }
    pusher.process = worker.rows_process;
    if (!sync()) worker.rows_sequence = std::max(worker.rows_sequence, push.sequence);
    try {
      WarnOfStranger(rank, push);
    } catch (const std::bad_alloc&) {  // the log lacks a line
    }
    if (sync()) {
      const bool foreign = push.incarnation != incarnation_;
      if (foreign) ++foreign_pushes_;
      if (foreign || schedule_.Push(rank, push.clock) == Schedule::Verdict::kDropLate) {
        worker.dropped = true;
        trace_.Add(Trace::kDropped, rank, push.clock, schedule_.slowest_clock());
        return OkAnswer(number, PushReply{true});
      }
      trace_.Add(Trace::kPush, rank, push.clock, schedule_.slowest_clock());
      ++collecting_;
    }
    ++pushes_;
  }
  const NotApplied missed =
      sync() ? sums_.Collect(rank, std::move(updates)) : updater_.Apply(pusher, std::move(updates));
  Lock lock(schedule_mutex_);
  if (sync()) {
    --collecting_;
    CloseIfComplete();
  } else {
    // Only now: whom this lets go sees what was pushed.
    schedule_.Push(rank, push.clock);
    trace_.Add(Trace::kPush, rank, schedule_.clock_of(rank), schedule_.slowest_clock());
  }
  Release(&lock);
  if (!missed.empty()) return Refuse(*caller, number, missed.status());
  // This push may have been the first that the log could not keep.
  if (Status s = CheckLog(); !s.ok()) return Refuse(*caller, number, s);
  return OkAnswer(number, PushReply{false});
}

Status Service::CheckLog() const {
  if (!options_.refuse_unlogged || !log_.has_lost()) return Status();
  return Status(StatusCode::kFailedPrecondition,
                "a push, while nothing keeps what it changes (durability='refuse'): the log of "
                "rows cannot be written, as the server's own messages say; pushes are taken again "
                "once a snapshot is written");
}

void Service::WarnOfStranger(int worker, const PushRequest& push) {
  std::vector<uint32_t> shards;
  for (const PushRequest::Entry& entry : push.entries) {
    // Counters and the like are often called the same.
    if (entry.kind != UpdateKind::kTableRows && store_->Find(entry.shard)->elements > 1)
      shards.push_back(entry.shard);
  }
  const int other = acquaintance_.FindDisjointWorker(worker, shards);
  if (other < 0) return;
  Tell(Server::Event::Kind::kLog, worker,
       StrCat("rank ", worker, " trains '", store_->Find(shards.front())->name, "'",
              shards.size() > 1 ? StrCat(" and ", shards.size() - 1, " more shards") : "",
              ", none of which rank ", other,
              " has: names differ where workers do not make the same variables in the same order"));
}

void Service::CloseIfComplete() {
  if (!sync() || collecting_ > 0 || !schedule_.StepIsComplete()) return;
  if (const NotApplied missed = sums_.Close(schedule_.contributions()); !missed.empty()) {
    Warn(missed.status().message());
  }
  trace_.Add(Trace::kClosed, 0, schedule_.clock(), schedule_.slowest_clock());
  schedule_.CloseStep();
}

ServerSnapshot Service::Freeze(bool changed_rows_only, const std::string& log_path) {
  const auto exclusive = store_->Exclude();
  ServerSnapshot image;
  std::string log = log_path;  // what needs memory comes before the log is begun
  image.time = store_->clock().Now();
  image.shards = store_->SnapshotShards();
  image.progress = SaveProgress();
  // Workers have created all of their variables before they train.
  if (pushes() > 0) store_->ForgetUnclaimed();
  image.aside = store_->SnapshotUnclaimed();
  image.tables = store_->BeginTableSnapshots(changed_rows_only);
  // What a push does is all in the image, or all in the file.
  if (!log.empty()) log_.Begin(std::move(log));
  return image;
}

Status Service::ReplayLog(const std::string& path, uint64_t* records, uint64_t* left_out) {
  Status status;
  RedoLog::Reader reader;
  std::vector<std::shared_ptr<Table>> replaced;  // which the log's first records may be of
  reader.find = [&](const std::string& name, const TableConfig& config) -> Table* {
    TableReply reply;
    status = store_->CreateTables({{{name, config, false}}}, &reply, &replaced, /*is_replay=*/true);
    return status.ok() ? store_->FindTable(reply.tables[0]) : nullptr;
  };
  reader.wants = [&](const Pusher& pusher) {
    if (pusher.sequence == 0 || pusher.worker >= workers_.size()) return true;
    Worker& worker = *workers_[pusher.worker];
    return IsNewer(pusher, &worker.rows_process, &worker.rows_sequence);
  };
  reader.wants_edit = [&](const Pusher& editor) {
    if (editor.sequence == 0 || editor.worker >= workers_.size()) return true;
    Worker& worker = *workers_[editor.worker];
    return IsNewer(editor, &worker.edit_process, &worker.edit_sequence);
  };
  reader.passes = [&](double now) { ResumeFrom(now); };
  const Status read = RedoLog::Replay(path, reader, records, left_out);
  return read.ok() ? status : read;
}

// The first that is known of the rows' time sets the clock, which else is that of the machine.
void Service::ResumeFrom(double time) {
  if (!std::exchange(knows_time_, true) || time > store_->clock().Now()) {
    store_->clock().ResumeFrom(time);
  }
}

uint64_t Service::pushes() const {
  const Lock lock(schedule_mutex_);
  return pushes_;
}

std::vector<uint64_t> Service::SaveProgress() const {
  const std::vector<uint64_t> updates = store_->update_counts();
  const Lock lock(schedule_mutex_);
  std::vector<uint64_t> progress = {kProgressVersion, workers_.size(), updates.size()};
  for (const auto& worker : workers_) {
    progress.insert(progress.end(),
                    {uint64_t{worker->process.has_value()}, worker->process.value_or(0),
                     worker->sequence, uint64_t{worker->dropped}, worker->rows_process,
                     worker->rows_sequence, worker->edit_process, worker->edit_sequence});
  }
  progress.insert(progress.end(), updates.begin(), updates.end());
  const std::vector<uint64_t> clocks = schedule_.Save();
  progress.insert(progress.end(), clocks.begin(), clocks.end());
  return progress;
}

Status Service::Restore(const ServerSnapshot& image) {
  if (image.time > 0) ResumeFrom(image.time);
  for (const auto& table : image.tables) {
    if (image.time == 0) ResumeFrom(table->LatestUse(store_->clock().Now()));
  }
  if (Status s = store_->RestoreShards(image.shards); !s.ok()) return s;
  if (Status s = store_->RestoreTables(image.tables); !s.ok()) return s;
  store_->AddUnclaimed(image.aside);
  return image.progress.empty() ? Status() : RestoreProgress(image.progress);
}

Status Service::RestoreProgress(const std::vector<uint64_t>& progress) {
  const size_t size = progress.size();
  const bool begins = size >= kProgressHead && progress[0] == kProgressVersion;
  const uint64_t workers = begins ? progress[1] : 0, shards = begins ? progress[2] : 0;
  if (!begins || workers > size || shards > size ||
      kProgressHead + kProgressPerWorker * workers + shards > size) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("the saved progress of parameter server ", options_.index,
                         " does not make sense: ", size, " numbers"));
  }
  auto next = progress.begin() + kProgressHead;
  const auto updates = next + kProgressPerWorker * workers, clocks = updates + shards;
  store_->RestoreUpdateCounts({updates, clocks});
  const Lock lock(schedule_mutex_);
  for (size_t i = 0; i < workers; ++i, next += kProgressPerWorker) {
    if (i >= workers_.size()) continue;
    if (next[0] != 0) workers_[i]->process = next[1];
    workers_[i]->sequence = next[2];
    workers_[i]->dropped = next[3] != 0;
    workers_[i]->rows_process = next[4];
    workers_[i]->rows_sequence = next[5];
    workers_[i]->edit_process = next[6];
    workers_[i]->edit_sequence = next[7];
  }
  schedule_.Restore({clocks, progress.end()});
  return Status();
}

}  // namespace tfdist::ps
