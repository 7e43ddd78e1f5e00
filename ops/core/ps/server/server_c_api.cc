// A parameter server for Python, through ctypes. Every function that can fail returns a status code
// (0: OK) and writes its message into `error`, cut to `error_size` bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/base/c_error.h"
#include "core/base/handle_table.h"
#include "core/ps/server/server.h"
#include "core/ps/server/server_handles.h"
#include "core/ps/table/table.h"
#include "core/ps/table/unique_ids.h"

// The fields of ServerOptions and ScheduleOptions; enumerations and booleans as numbers.
struct tfdist_ps_server_options {
  int32_t index, mode, workers, num_aggregate, staleness, hogwild, compensation, refuse_unlogged,
      threads, has_chief;
  double worker_timeout_seconds, start_timeout_seconds, compensation_lambda;
  uint64_t trace_events, memory_budget;
};

namespace {

using namespace tfdist;  // NOLINT: what follows is C, and names nothing for others
using ps::FindServer;
using ps::Server;
using ps::UnknownServer;

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
  options.hogwild = from.hogwild != 0;
  options.compensation = static_cast<ps::Compensation>(from.compensation);
  options.compensation_lambda = from.compensation_lambda;
  options.refuse_unlogged = from.refuse_unlogged != 0;
  options.threads = from.threads;
  options.trace_events = from.trace_events;
  options.memory_budget = from.memory_budget;
  return options;
}

}  // namespace

extern "C" {

// Sizes of structures that Python declares too. It compares them when it loads the library.
size_t tfdist_sizeof_server_options() { return sizeof(tfdist_ps_server_options); }
size_t tfdist_sizeof_server_stats() { return sizeof(ps::ServerStats); }
size_t tfdist_sizeof_table_stats() { return sizeof(ps::TableStats); }
size_t tfdist_sizeof_trace_event() { return sizeof(ps::TraceEvent); }

int tfdist_ps_server_create(const tfdist_ps_server_options* options, const char* interface,
                            int port, int local, int64_t* handle, int* bound_port, char* error,
                            size_t error_size) {
  auto entry = std::make_shared<ps::ServerEntry>();
  const Status status =
      Server::Create(ToOptions(*options), interface, port, local != 0, &entry->server);
  if (status.ok()) {
    *bound_port = entry->server->port();
    *handle = HandleTable<ps::ServerEntry>::Get().Add(std::move(entry));
  }
  return Report(status, error, error_size);
}

// Takes what was restored, and lets workers in.
int tfdist_ps_server_start(int64_t handle, const uint8_t* key, char* error, size_t error_size) {
  const std::shared_ptr<ps::ServerEntry> entry = FindServer(handle);
  if (entry == nullptr) return Report(UnknownServer(handle), error, error_size);
  Key bytes;
  std::copy_n(key, bytes.size(), bytes.begin());
  const std::lock_guard<std::mutex> lock(entry->mutex);
  Status status = entry->server->Restore(std::exchange(entry->restored, {}));
  if (status.ok()) status = entry->server->Start(bytes);
  return Report(status, error, error_size);
}

uint64_t tfdist_ps_server_incarnation(int64_t handle) {
  const std::shared_ptr<ps::ServerEntry> entry = FindServer(handle);
  return entry == nullptr ? 0 : entry->server->incarnation();
}

// 1: there was an event, 0: there was none, -1: the server was closed.
int tfdist_ps_server_wait_event(int64_t handle, double seconds, int* kind, int* worker, char* text,
                                size_t text_size) {
  const std::shared_ptr<ps::ServerEntry> entry = FindServer(handle);
  if (entry == nullptr) return -1;
  Server::Event event;
  if (!entry->server->WaitForEvent(seconds, &event)) return 0;
  *kind = static_cast<int>(event.kind);
  *worker = event.worker;
  CopyText(event.text, text, text_size);
  return 1;
}

// As Server::Waits; of a server that was closed nothing is set.
void tfdist_ps_server_waits(int64_t handle, bool* waits) {
  const std::shared_ptr<ps::ServerEntry> entry = FindServer(handle);
  if (entry != nullptr) entry->server->Waits(waits);
}

void tfdist_ps_server_stats(int64_t handle, ps::ServerStats* stats) {
  const std::shared_ptr<ps::ServerEntry> entry = FindServer(handle);
  *stats = entry == nullptr ? ps::ServerStats() : entry->server->stats();
}

// The latest events, oldest first, at most `most`; returns how many.
uint64_t tfdist_ps_server_trace(int64_t handle, ps::TraceEvent* events, uint64_t most) {
  const std::shared_ptr<ps::ServerEntry> entry = FindServer(handle);
  if (entry == nullptr) return 0;
  const std::vector<ps::TraceEvent> trace = entry->server->trace();
  const uint64_t count = std::min<uint64_t>(most, trace.size());
  std::copy(trace.end() - count, trace.end(), events);
  return count;
}

// Table `i`: its name, cut to `name_size` bytes, and what it has done. Returns whether there is
// one.
bool tfdist_ps_server_table_stats(int64_t handle, uint64_t i, char* name, size_t name_size,
                                  ps::TableStats* stats) {
  const std::shared_ptr<ps::ServerEntry> entry = FindServer(handle);
  if (entry == nullptr) return false;
  const auto tables = entry->server->tables();
  if (i >= tables.size()) return false;
  CopyText(tables[i]->name(), name, name_size);
  *stats = tables[i]->stats();
  return true;
}

// Which of `servers` holds each of `count` ids.
void tfdist_ps_server_of_ids(const int64_t* ids, uint64_t count, int servers, int32_t* found) {
  for (uint64_t i = 0; i < count; ++i) found[i] = ps::ServerOfId(ids[i], servers);
}

void tfdist_ps_server_close(int64_t handle) {
  // Here, although somebody may wait for an event and hold another reference.
  if (const auto entry = HandleTable<ps::ServerEntry>::Get().Remove(handle)) entry->server->Close();
}

}  // extern "C"
