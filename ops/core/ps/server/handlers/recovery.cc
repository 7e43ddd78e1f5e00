#include "core/ps/server/handlers/recovery.h"

#include <memory>
#include <mutex>
#include <utility>

namespace tfdist::ps {
namespace {

constexpr double kMaxSavedTime = 0x1p53;  // in seconds
constexpr uint64_t kProgressVersion = 3;
constexpr size_t kProgressHead = 3;  // version, workers, shards
// Whether a process came, its id, its last push, whether that was dropped; the process and the
// sequence of the last push whose rows were applied; the same of the last edit of rows.
constexpr size_t kProgressPerWorker = 8;

// Whether a record of a redo log is newer than the last known one of its worker, which it replaces.
bool IsNewer(const Pusher& pusher, uint64_t* process, uint64_t* sequence) {
  if (*process == pusher.process && *sequence >= pusher.sequence) return false;
  *process = pusher.process;
  *sequence = pusher.sequence;
  return true;
}

}  // namespace

ServerSnapshot Recovery::TakeSnapshot(bool changed_rows_only, const std::string& log_path) {
  const auto exclusive = state_.store->Exclude();
  ServerSnapshot snapshot;
  std::string log = log_path;  // all memory is allocated before the log begins
  snapshot.time = state_.store->clock().Now();
  snapshot.shards = state_.store->SnapshotShards();
  snapshot.progress = SaveProgress();
  snapshot.tasks_trained = state_.tasks.Save();
  // Workers have created all of their variables before they train.
  if (pushes() > 0) state_.store->ForgetUnclaimed();
  snapshot.unclaimed = state_.store->SnapshotUnclaimed();
  snapshot.tables = state_.store->BeginTableSnapshots(changed_rows_only);
  // The effect of a push is entirely in the snapshot, or entirely in the log.
  if (!log.empty()) state_.log.Begin(std::move(log));
  return snapshot;
}

Status Recovery::ReplayLog(const std::string& path, uint64_t* records, uint64_t* left_out) {
  Status status;
  RedoLog::Reader reader;
  std::vector<std::shared_ptr<Table>> replaced;  // the log's first records may be of these
  reader.find = [&](const std::string& name, const TableConfig& config) -> Table* {
    TableReply reply;
    status = state_.store->CreateTables({{{name, config, false}}}, &reply, &replaced,
                                        /*is_replay=*/true);
    return status.ok() ? state_.store->FindTable(reply.tables[0]) : nullptr;
  };
  reader.wants = [&](const Pusher& pusher) {
    if (pusher.sequence == 0 || pusher.worker >= state_.workers.size()) return true;
    WorkerState& worker = *state_.workers[pusher.worker];
    return IsNewer(pusher, &worker.rows_process, &worker.rows_sequence);
  };
  reader.wants_edit = [&](const Pusher& editor) {
    if (editor.sequence == 0 || editor.worker >= state_.workers.size()) return true;
    WorkerState& worker = *state_.workers[editor.worker];
    return IsNewer(editor, &worker.edit_process, &worker.edit_sequence);
  };
  reader.passes = [&](double now) { ResumeFrom(now); };
  reader.moves = [&](const std::vector<TaskPosition>& to) { state_.tasks.Restore(to); };
  reader.sets = [&](const std::string& name, DType dtype, uint64_t elements, BlockPtr value) {
    return state_.store->RestoreValue({name, dtype, elements, std::move(value)});
  };
  reader.fits = [&](const std::string& name, DType dtype, uint64_t elements) {
    return state_.store->CheckShard(name, dtype, elements);
  };
  reader.reports = [&](const std::string& text) { state_.Warn(text); };
  const Status read = RedoLog::Replay(path, reader, records, left_out);
  return read.ok() ? status : read;
}

void Recovery::ResumeFrom(double time) {
  if (!std::exchange(knows_time_, true) || time > state_.store->clock().Now()) {
    state_.store->clock().ResumeFrom(time);
  }
}

uint64_t Recovery::pushes() const {
  const std::lock_guard<std::mutex> lock(state_.mutex);
  return steps_.pushes();
}

std::vector<uint64_t> Recovery::SaveProgress() const {
  const std::vector<uint64_t> updates = state_.store->update_counts();
  const std::lock_guard<std::mutex> lock(state_.mutex);
  std::vector<uint64_t> progress = {kProgressVersion, state_.workers.size(), updates.size()};
  for (const auto& worker : state_.workers) {
    progress.insert(progress.end(),
                    {uint64_t{worker->process.has_value()}, worker->process.value_or(0),
                     worker->sequence, uint64_t{worker->dropped}, worker->rows_process,
                     worker->rows_sequence, worker->edit_process, worker->edit_sequence});
  }
  progress.insert(progress.end(), updates.begin(), updates.end());
  const std::vector<uint64_t> clocks = state_.schedule.Save();
  progress.insert(progress.end(), clocks.begin(), clocks.end());
  return progress;
}

Status Recovery::Restore(const ServerSnapshot& snapshot) {
  if (!(snapshot.time < kMaxSavedTime)) {
    return InvalidArgument(StrCat("saved rows: expected a time, received ", snapshot.time));
  }
  if (snapshot.time > 0) ResumeFrom(snapshot.time);
  for (const auto& table : snapshot.tables) {
    if (snapshot.time == 0) ResumeFrom(table->LatestUse(state_.store->clock().Now()));
  }
  if (Status s = state_.store->RestoreShards(snapshot.shards); !s.ok()) return s;
  if (Status s = state_.store->RestoreTables(snapshot.tables); !s.ok()) return s;
  if (Status s = state_.store->AddUnclaimed(snapshot.unclaimed); !s.ok()) return s;
  state_.tasks.Restore(snapshot.tasks_trained);
  return snapshot.progress.empty() ? Status() : RestoreProgress(snapshot.progress);
}

Status Recovery::RestoreProgress(const std::vector<uint64_t>& progress) {
  const size_t size = progress.size();
  const bool begins = size >= kProgressHead && progress[0] == kProgressVersion;
  const uint64_t workers = begins ? progress[1] : 0, shards = begins ? progress[2] : 0;
  if (!begins || workers > size || shards > size ||
      kProgressHead + kProgressPerWorker * workers + shards > size) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("the saved progress of parameter server ", state_.options.index,
                         " does not make sense: ", size, " numbers"));
  }
  auto next = progress.begin() + kProgressHead;
  const auto updates = next + kProgressPerWorker * workers, clocks = updates + shards;
  state_.store->RestoreUpdateCounts({updates, clocks});
  const std::lock_guard<std::mutex> lock(state_.mutex);
  for (size_t i = 0; i < workers; ++i, next += kProgressPerWorker) {
    if (i >= state_.workers.size()) continue;
    WorkerState& worker = *state_.workers[i];
    if (next[0] != 0) worker.process = next[1];
    worker.sequence = next[2];
    worker.dropped = next[3] != 0;
    worker.rows_process = next[4];
    worker.rows_sequence = next[5];
    worker.edit_process = next[6];
    worker.edit_sequence = next[7];
  }
  state_.schedule.Restore({clocks, progress.end()});
  return Status();
}

}  // namespace tfdist::ps
