// A parameter server and its snapshots for Python, through ctypes.
//
// Servers and snapshots are named by handles. A function with an `error` returns a status code (0:
// OK) and writes its message there, cut to `error_size` bytes. The others do nothing if the handle
// is unknown.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/c_error.h"
#include "core/base/handle_table.h"
#include "core/ps/protocol/message.h"
#include "core/ps/server/server.h"
#include "core/ps/table/ids_by_server.h"
#include "core/ps/table/rows_c_api.h"
#include "core/ps/table/table.h"

// The fields of ServerOptions and ScheduleOptions; enumerations and booleans as numbers.
struct tfdist_ps_server_options {
  int32_t index, mode, workers, num_aggregate, staleness, hogwild, compensation, refuse_unlogged,
      threads, has_chief, elastic, read_only;
  double worker_timeout_seconds, start_timeout_seconds, compensation_lambda;
  uint64_t trace_events, memory_budget;
};

// A table's name and configuration, encoded as `description`, and the last step it has applied.
struct tfdist_ps_saved_table {
  const char* description;
  uint64_t description_bytes;
  const char* name;
  uint64_t content_floats;
  double learning_rate;
  int64_t step;
};

namespace {

using namespace tfdist;  // NOLINT: a C interface, which declares no C++ names
using ps::Server;
using ps::ServerSnapshot;

struct ServerEntry {
  std::unique_ptr<Server> server;
  std::mutex mutex;
  ServerSnapshot restored;  // collected until the start; guarded by mutex
};

// Null if it was closed.
std::shared_ptr<ServerEntry> FindServer(int64_t handle) {
  return HandleTable<ServerEntry>::Get().Find(handle);
}

// Reports the status of `call(entry)`, or that the server was closed.
template <typename Call>
int CallServer(int64_t handle, char* error, size_t error_size, const Call& call) {
  const std::shared_ptr<ServerEntry> entry = FindServer(handle);
  if (entry == nullptr) {
    const Status closed(StatusCode::kFailedPrecondition,
                        StrCat("parameter server ", handle, " was closed"));
    return Report(closed, error, error_size);
  }
  return Report(call(*entry), error, error_size);
}

// A snapshot, and the memory of the results that Python was given last.
struct SnapshotEntry {
  ServerSnapshot server;
  std::vector<std::string> descriptions;  // of the tables
  ps::SavedRows rows;
};

std::shared_ptr<SnapshotEntry> FindSnapshot(int64_t handle) {
  return HandleTable<SnapshotEntry>::Get().Find(handle);
}

// Unclaimed shards have the last indices. Null if there is no such shard.
ps::SavedShard* ShardAt(SnapshotEntry* snapshot, uint64_t index) {
  auto &shards = snapshot->server.shards, &unclaimed = snapshot->server.unclaimed;
  if (index < shards.size()) return &shards[index];
  index -= shards.size();
  return index < unclaimed.size() ? &unclaimed[index] : nullptr;
}

ps::ServerOptions ToOptions(const tfdist_ps_server_options& from) {
  ps::ServerOptions options;
  options.index = from.index;
  options.schedule.mode = static_cast<ps::Mode>(from.mode);
  options.schedule.workers = from.workers;
  options.schedule.num_aggregate = from.num_aggregate;
  options.schedule.staleness = from.staleness;
  options.schedule.worker_timeout_seconds = from.worker_timeout_seconds;
  options.schedule.start_timeout_seconds = from.start_timeout_seconds;
  options.schedule.has_chief = from.has_chief != 0;
  options.schedule.elastic = from.elastic != 0;
  options.hogwild = from.hogwild != 0;
  options.compensation = static_cast<ps::Compensation>(from.compensation);
  options.compensation_lambda = from.compensation_lambda;
  options.refuse_unlogged = from.refuse_unlogged != 0;
  options.threads = from.threads;
  options.read_only = from.read_only != 0;
  options.trace_events = from.trace_events;
  options.memory_budget = from.memory_budget;
  return options;
}

// The configuration of a table that is only read: rows without slots, and no evictions. Rows that
// catch up with steps keep their slots, on which their values depend.
ps::TableConfig ServedConfig(const ps::TableConfig& config) {
  ps::TableConfig served;
  served.width = config.width;
  served.initializer = config.initializer;
  if (config.rule == ps::RowRule::kExactAdam) {
    served.rule = config.rule;
    served.optimizer = config.optimizer;
    served.weight_decay = config.weight_decay;
    served.first_slots = config.first_slots;
  }
  return served;
}

// Finds the table among the restored ones, or creates it there.
Status AddTable(const tfdist_ps_saved_table& saved, std::vector<std::shared_ptr<ps::Table>>* tables,
                int* index) {
  ps::TableRequest request;
  const std::string_view description(saved.description, saved.description_bytes);
  if (!ps::Decode(description, &request).ok() || request.entries.size() != 1) {
    return Status(StatusCode::kInvalidArgument, "a saved table's description does not make sense");
  }
  const std::string& name = request.entries[0].name;
  const ps::TableConfig& config = request.entries[0].config;
  if (Status s = ps::Table::Check(config); !s.ok()) return s;
  // Also of a table that is there already: its rows follow.
  if (const uint64_t floats = ps::ContentFloats(config); floats != saved.content_floats) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("saved table '", name, "': expected rows of ", floats,
                         " numbers, received ", saved.content_floats));
  }
  std::unique_ptr<ps::Table> table;
  for (size_t i = 0; i < tables->size(); ++i) {
    if ((*tables)[i]->name() != name) continue;
    *index = static_cast<int>(i);
    (*tables)[i]->RestoreStep({saved.learning_rate, saved.step});
    if (ps::Encode(ps::TableRequest{{{name, (*tables)[i]->config(), false}}}) == description) {
      return Status();
    }
    if ((*tables)[i]->config().width != config.width) {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("saved table '", name, "' has two configurations"));
    }
    // Its slots were reset after the previous file was written: this file has all of its rows.
    break;
  }
  if (Status s = ps::Table::Create(config, &table, name); !s.ok()) return s;
  table->RestoreStep({saved.learning_rate, saved.step});
  const auto former = std::find_if(tables->begin(), tables->end(),
                                   [&](const auto& other) { return other->name() == name; });
  *index = static_cast<int>(former - tables->begin());
  if (former == tables->end()) {
    tables->push_back(std::move(table));
  } else {
    *former = std::move(table);
  }
  return Status();
}

}  // namespace

extern "C" {

// Sizes of structures that Python declares too. It compares them when it loads the library.
size_t tfdist_sizeof_server_options() { return sizeof(tfdist_ps_server_options); }
size_t tfdist_sizeof_server_stats() { return sizeof(ps::ServerStats); }
size_t tfdist_sizeof_table_stats() { return sizeof(ps::TableStats); }
size_t tfdist_sizeof_trace_event() { return sizeof(ps::TraceEvent); }
size_t tfdist_sizeof_saved_rows() { return sizeof(tfdist_ps_rows); }
size_t tfdist_sizeof_saved_table() { return sizeof(tfdist_ps_saved_table); }

int tfdist_ps_server_create(const tfdist_ps_server_options* options, const char* interface,
                            int port, int local, int64_t* handle, int* bound_port, char* error,
                            size_t error_size) {
  auto entry = std::make_shared<ServerEntry>();
  const Status status =
      Server::Create(ToOptions(*options), interface, port, local != 0, &entry->server);
  if (status.ok()) {
    *bound_port = entry->server->port();
    *handle = HandleTable<ServerEntry>::Get().Add(std::move(entry));
  }
  return Report(status, error, error_size);
}

void tfdist_ps_server_close(int64_t handle) {
  // Closed here, because a wait for an event may hold another reference.
  if (const auto entry = HandleTable<ServerEntry>::Get().Remove(handle)) entry->server->Close();
}

// Before the start: adds a saved shard, whose memory is copied. An unclaimed one waits until a
// worker creates it.
int tfdist_ps_server_restore_shard(int64_t handle, const char* name, int dtype, uint64_t elements,
                                   const void* data, uint64_t bytes, bool unclaimed, char* error,
                                   size_t error_size) {
  return CallServer(handle, error, error_size, [&](ServerEntry& entry) {
    if (dtype < static_cast<int>(DType::kFloat16) || dtype > static_cast<int>(DType::kBytes)) {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("saved shard '", name, "': unknown dtype ", dtype));
    }
    return WithMemory("a saved shard", [&] {
      auto block = std::make_shared<ps::Block>(bytes);
      if (bytes > 0) std::memcpy(block->data(), data, bytes);
      const std::lock_guard<std::mutex> lock(entry.mutex);
      auto& shards = unclaimed ? entry.restored.unclaimed : entry.restored.shards;
      shards.push_back({name, static_cast<DType>(dtype), elements, std::move(block)});
      return Status();
    });
  });
}

// Before the start: adds a saved table, which may be there already. `index` is its index.
int tfdist_ps_server_restore_table(int64_t handle, const tfdist_ps_saved_table* saved, int* index,
                                   char* error, size_t error_size) {
  return CallServer(handle, error, error_size, [&](ServerEntry& entry) {
    const std::lock_guard<std::mutex> lock(entry.mutex);
    return WithMemory("a saved table",
                      [&] { return AddTable(*saved, &entry.restored.tables, index); });
  });
}

// The same of a server that only reads the table's values. `description` becomes the table's in
// this form, cut to `size` bytes; `needed`: its length. `floats`: the numbers of its rows, the
// first of a saved row's.
int tfdist_ps_served_table(const tfdist_ps_saved_table* saved, char* description, uint64_t size,
                           uint64_t* needed, uint64_t* width, uint64_t* floats, char* error,
                           size_t error_size) {
  ps::TableRequest request;
  const std::string_view text(saved->description, saved->description_bytes);
  if (!ps::Decode(text, &request).ok() || request.entries.size() != 1) {
    return Report(InvalidArgument("a saved table's description does not make sense"), error,
                  error_size);
  }
  ps::TableRequest::Entry& entry = request.entries[0];
  entry.config = ServedConfig(entry.config);
  entry.resets_slots = false;
  const std::string served = ps::Encode(request);
  *needed = served.size();
  *width = entry.config.width;
  *floats = ps::ContentFloats(entry.config);
  std::copy_n(served.data(), std::min<uint64_t>(size, served.size()), description);
  return Report(Status(), error, error_size);
}

// As Server::UpdateRows.
int tfdist_ps_server_update_rows(int64_t handle, const char* table, const tfdist_ps_rows* rows,
                                 uint64_t floats, int server, int servers, char* error,
                                 size_t error_size) {
  return CallServer(handle, error, error_size, [&](ServerEntry& entry) {
    return WithMemory("rows of a served table", [&] {
      return entry.server->UpdateRows(table,
                                      {rows->count, rows->removed_count, rows->ids, rows->used,
                                       rows->counts, rows->content, rows->removed},
                                      floats, server, servers);
    });
  });
}

// As Server::SetStep.
int tfdist_ps_server_set_step(int64_t handle, const char* table, double learning_rate, int64_t step,
                              char* error, size_t error_size) {
  return CallServer(handle, error, error_size, [&](ServerEntry& entry) {
    return entry.server->SetStep(table, {learning_rate, step});
  });
}

// As Server::RetainRows.
int tfdist_ps_server_retain_rows(int64_t handle, const char* table, uint32_t used, char* error,
                                 size_t error_size) {
  return CallServer(handle, error, error_size,
                    [&](ServerEntry& entry) { return entry.server->RetainRows(table, used); });
}

// Adds rows of `floats` numbers to a restored table: the rows of `server` in a job with `servers`
// servers.
int tfdist_ps_server_restore_rows(int64_t handle, int index, const tfdist_ps_rows* rows,
                                  uint64_t floats, int server, int servers, char* error,
                                  size_t error_size) {
  return CallServer(handle, error, error_size, [&](ServerEntry& entry) {
    const std::lock_guard<std::mutex> lock(entry.mutex);
    const auto& tables = entry.restored.tables;
    if (index < 0 || static_cast<size_t>(index) >= tables.size()) {
      return Status(StatusCode::kInvalidArgument, StrCat("there is no saved table ", index));
    }
    if (const ps::Table& table = *tables[index]; floats != table.content_floats()) {
      return InvalidArgument(StrCat("saved table '", table.name(), "': expected rows of ",
                                    table.content_floats(), " numbers, received ", floats));
    }
    return WithMemory("saved rows", [&] {
      tables[index]->ImportRows({rows->count, rows->removed_count, rows->ids, rows->used,
                                 rows->counts, rows->content, rows->removed},
                                server, servers);
      return Status();
    });
  });
}

// The time of the restored rows, as tfdist_ps_snapshot_time returned it.
void tfdist_ps_server_restore_time(int64_t handle, double time) {
  const std::shared_ptr<ServerEntry> entry = FindServer(handle);
  if (entry == nullptr) return;
  const std::lock_guard<std::mutex> lock(entry->mutex);
  entry->restored.time = time;
}

int tfdist_ps_server_restore_progress(int64_t handle, const uint64_t* progress, uint64_t count,
                                      char* error, size_t error_size) {
  return CallServer(handle, error, error_size, [&](ServerEntry& entry) {
    const std::lock_guard<std::mutex> lock(entry.mutex);
    entry.restored.progress.assign(progress, progress + count);
    return Status();
  });
}

// A task's position, as tfdist_ps_snapshot_task returned it.
void tfdist_ps_server_restore_task(int64_t handle, const char* task, uint64_t trained) {
  const std::shared_ptr<ServerEntry> entry = FindServer(handle);
  if (entry == nullptr) return;
  const std::lock_guard<std::mutex> lock(entry->mutex);
  entry->restored.tasks_trained.push_back({task, trained});
}

// Forgets the added shards, tables, time, progress and tasks.
void tfdist_ps_server_restore_nothing(int64_t handle) {
  const std::shared_ptr<ServerEntry> entry = FindServer(handle);
  if (entry == nullptr) return;
  const std::lock_guard<std::mutex> lock(entry->mutex);
  entry->restored = {};
}

// Restores the added state, as the start does too.
int tfdist_ps_server_restore_end(int64_t handle, char* error, size_t error_size) {
  return CallServer(handle, error, error_size, [&](ServerEntry& entry) {
    const std::lock_guard<std::mutex> lock(entry.mutex);
    return WithMemory("the restored state",
                      [&] { return entry.server->Restore(std::exchange(entry.restored, {})); });
  });
}

// Applies a redo log to the restored state.
int tfdist_ps_server_replay_log(int64_t handle, const char* path, uint64_t* records,
                                uint64_t* left_out, char* error, size_t error_size) {
  return CallServer(handle, error, error_size, [&](ServerEntry& entry) {
    return WithMemory("a log of rows",
                      [&] { return entry.server->ReplayLog(path, records, left_out); });
  });
}

void tfdist_ps_server_begin_log(int64_t handle, const char* path) {
  if (const auto entry = FindServer(handle)) entry->server->BeginLog(path);
}

// Restores the added state, and admits workers.
int tfdist_ps_server_start(int64_t handle, const uint8_t* key, char* error, size_t error_size) {
  return CallServer(handle, error, error_size, [&](ServerEntry& entry) {
    Key bytes;
    std::copy_n(key, bytes.size(), bytes.begin());
    const std::lock_guard<std::mutex> lock(entry.mutex);
    const Status status = entry.server->Restore(std::exchange(entry.restored, {}));
    return status.ok() ? entry.server->Start(bytes) : status;
  });
}

// The data tasks of the job, whose master is in this process; see server/task_positions.h.
uint64_t tfdist_ps_server_open_task(int64_t handle, uint64_t lease, const char* task,
                                    uint64_t trained) {
  const auto entry = FindServer(handle);
  return entry == nullptr ? 0 : entry->server->tasks().Open(lease, task, trained);
}

uint64_t tfdist_ps_server_advance_task(int64_t handle, uint64_t lease, uint64_t trained) {
  const auto entry = FindServer(handle);
  return entry == nullptr ? 0 : entry->server->tasks().Advance(lease, trained);
}

uint64_t tfdist_ps_server_close_task(int64_t handle, uint64_t lease, bool forgets) {
  const auto entry = FindServer(handle);
  return entry == nullptr ? 0 : entry->server->tasks().Close(lease, forgets);
}

void tfdist_ps_server_forget_tasks(int64_t handle, const char* first, const char* last) {
  if (const auto entry = FindServer(handle)) entry->server->tasks().Forget(first, last);
}

uint64_t tfdist_ps_server_incarnation(int64_t handle) {
  const std::shared_ptr<ServerEntry> entry = FindServer(handle);
  return entry == nullptr ? 0 : entry->server->incarnation();
}

// 1: there was an event, 0: there was none, -1: the server was closed.
int tfdist_ps_server_wait_event(int64_t handle, double seconds, int* kind, int* worker, char* text,
                                size_t text_size) {
  const std::shared_ptr<ServerEntry> entry = FindServer(handle);
  if (entry == nullptr) return -1;
  Server::Event event;
  if (!entry->server->WaitForEvent(seconds, &event)) return 0;
  *kind = static_cast<int>(event.kind);
  *worker = event.worker;
  CopyText(event.text, text, text_size);
  return 1;
}

// As Server::Waits.
void tfdist_ps_server_waits(int64_t handle, bool* waits) {
  if (const auto entry = FindServer(handle)) entry->server->Waits(waits);
}

void tfdist_ps_server_stats(int64_t handle, ps::ServerStats* stats) {
  const std::shared_ptr<ServerEntry> entry = FindServer(handle);
  *stats = entry == nullptr ? ps::ServerStats() : entry->server->stats();
}

// Copies the latest events, oldest first, at most `max_events`; returns how many.
uint64_t tfdist_ps_server_trace(int64_t handle, ps::TraceEvent* events, uint64_t max_events) {
  const std::shared_ptr<ServerEntry> entry = FindServer(handle);
  if (entry == nullptr) return 0;
  const std::vector<ps::TraceEvent> trace = entry->server->trace();
  const uint64_t count = std::min<uint64_t>(max_events, trace.size());
  std::copy(trace.end() - count, trace.end(), events);
  return count;
}

// The name of table `index`, cut to `name_size` bytes, and its statistics. Returns whether the
// table exists.
bool tfdist_ps_server_table_stats(int64_t handle, uint64_t index, char* name, size_t name_size,
                                  ps::TableStats* stats) {
  const std::shared_ptr<ServerEntry> entry = FindServer(handle);
  if (entry == nullptr) return false;
  const auto tables = entry->server->tables();
  if (index >= tables.size()) return false;
  CopyText(tables[index]->name(), name, name_size);
  *stats = tables[index]->stats();
  return true;
}

// Which of `servers` servers holds each of `count` ids.
void tfdist_ps_server_of_ids(const int64_t* ids, uint64_t count, int servers, int32_t* found) {
  for (uint64_t i = 0; i < count; ++i) found[i] = ps::ServerOfId(ids[i], servers);
}

// Takes a snapshot, which has a handle of its own. Tables support one copy at a time: of all rows,
// or of the rows that changed since the last copy. Later changes of rows are recorded in the redo
// log `log_path`, unless that is empty.
int tfdist_ps_server_checkpoint(int64_t handle, bool changed_only, const char* log_path,
                                int64_t* snapshot, char* error, size_t error_size) {
  return CallServer(handle, error, error_size, [&](ServerEntry& entry) {
    return WithMemory("a snapshot", [&] {
      auto taken = std::make_shared<SnapshotEntry>();
      taken->server = entry.server->TakeSnapshot(changed_only, log_path);
      for (const auto& table : taken->server.tables) {
        taken->descriptions.push_back(
            ps::Encode(ps::TableRequest{{{table->name(), table->config(), false}}}));
      }
      *snapshot = HandleTable<SnapshotEntry>::Get().Add(std::move(taken));
      return Status();
    });
  });
}

// The last snapshot is on disk.
void tfdist_ps_server_saved(int64_t handle) {
  if (const auto entry = FindServer(handle)) entry->server->Saved();
}

// When the snapshot was taken, in the time of its rows.
double tfdist_ps_snapshot_time(int64_t snapshot) {
  const auto found = FindSnapshot(snapshot);
  return found == nullptr ? 0 : found->server.time;
}

// The number of shards, with the unclaimed ones at the end.
uint64_t tfdist_ps_snapshot_count(int64_t snapshot) {
  const auto found = FindSnapshot(snapshot);
  return found == nullptr ? 0 : found->server.shards.size() + found->server.unclaimed.size();
}

uint64_t tfdist_ps_snapshot_unclaimed_count(int64_t snapshot) {
  const auto found = FindSnapshot(snapshot);
  return found == nullptr ? 0 : found->server.unclaimed.size();
}

// Returns whether the shard exists. The pointers are valid until the snapshot is
// freed.
bool tfdist_ps_snapshot_entry(int64_t snapshot, uint64_t index, const char** name, int* dtype,
                              uint64_t* elements, const void** data, uint64_t* bytes) {
  const auto found = FindSnapshot(snapshot);
  const ps::SavedShard* const shard = found == nullptr ? nullptr : ShardAt(found.get(), index);
  if (shard == nullptr) return false;
  *name = shard->name.c_str();
  *dtype = static_cast<int>(shard->dtype);
  *elements = shard->elements;
  *data = shard->block->data();
  *bytes = shard->block->bytes();
  return true;
}

// Returns whether the table exists. The pointers are valid until the snapshot is
// freed.
bool tfdist_ps_snapshot_table(int64_t snapshot, uint64_t index, tfdist_ps_saved_table* out) {
  const auto found = FindSnapshot(snapshot);
  if (found == nullptr || index >= found->server.tables.size()) return false;
  const ps::Table& table = *found->server.tables[index];
  const std::string& description = found->descriptions[index];
  const ps::StepValues step = table.snapshot_step();
  *out = {description.data(),     description.size(), table.name().c_str(),
          table.content_floats(), step.learning_rate, step.step};
  return true;
}

// The next rows of a table, about `max_rows`. They are valid until the next call for this snapshot,
// which one thread makes at a time. 1: there were some, 0: there were none, -1: there was no
// memory, and the snapshot is of no use.
int tfdist_ps_snapshot_next_rows(int64_t snapshot, uint64_t index, uint64_t max_rows,
                                 tfdist_ps_rows* out) {
  const auto found = FindSnapshot(snapshot);
  if (found == nullptr || index >= found->server.tables.size()) return 0;
  ps::SavedRows& rows = found->rows;
  rows.ids.clear();
  rows.used.clear();
  rows.counts.clear();
  rows.content.clear();
  rows.removed.clear();
  try {
    if (!found->server.tables[index]->NextSnapshotRows(max_rows, &rows)) return 0;
  } catch (const std::bad_alloc&) {
    for (const auto& table : found->server.tables) table->EndSnapshot();
    return -1;
  }
  *out = {rows.ids.size(),    rows.removed.size(), rows.ids.data(),    rows.used.data(),
          rows.counts.data(), rows.content.data(), rows.removed.data()};
  return 1;
}

// Returns whether the snapshot exists.
bool tfdist_ps_snapshot_progress(int64_t snapshot, const uint64_t** progress, uint64_t* count) {
  const auto found = FindSnapshot(snapshot);
  if (found == nullptr) return false;
  *progress = found->server.progress.data();
  *count = found->server.progress.size();
  return true;
}

// Returns whether the task exists. The pointer is valid until the snapshot is freed.
bool tfdist_ps_snapshot_task(int64_t snapshot, uint64_t index, const char** task,
                             uint64_t* trained) {
  const auto found = FindSnapshot(snapshot);
  if (found == nullptr || index >= found->server.tasks_trained.size()) return false;
  *task = found->server.tasks_trained[index].task.c_str();
  *trained = found->server.tasks_trained[index].trained;
  return true;
}

void tfdist_ps_snapshot_free(int64_t snapshot) {
  HandleTable<SnapshotEntry>::Get().Remove(snapshot);
}

}  // extern "C"
