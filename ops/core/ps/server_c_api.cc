// A parameter server for Python, through ctypes. Every function that can fail returns a status code
// (0: OK) and writes its message into `error`, cut to `error_size` bytes.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/c_error.h"
#include "core/handle_table.h"
#include "core/ps/server.h"

// The fields of ServerOptions and ScheduleOptions; enumerations and booleans as numbers.
struct tfdist_ps_server_options {
  int32_t index, mode, workers, num_aggregate, staleness, hogwild, compensation, threads, has_chief;
  double worker_timeout_seconds, start_timeout_seconds, compensation_lambda;
  uint64_t trace_events;
};

namespace {

using namespace tfdist;  // NOLINT: what follows is C, and names nothing for others
using ps::Server;
using ps::ServerImage;

struct Entry {
  std::unique_ptr<Server> server;
  std::mutex mutex;
  ServerImage restored;  // until the start; guarded by mutex
};

std::shared_ptr<Entry> Find(int64_t handle) { return HandleTable<Entry>::Get().Find(handle); }

Status Unknown(int64_t handle) {
  return Status(StatusCode::kFailedPrecondition,
                StrCat("parameter server ", handle, " was closed"));
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
  options.hogwild = from.hogwild != 0;
  options.compensation = static_cast<ps::Compensation>(from.compensation);
  options.compensation_lambda = from.compensation_lambda;
  options.threads = from.threads;
  options.trace_events = from.trace_events;
  return options;
}

}  // namespace

extern "C" {

int tfdist_ps_server_create(const tfdist_ps_server_options* options, int port, int64_t* handle,
                            int* bound_port, char* error, size_t error_size) {
  auto entry = std::make_shared<Entry>();
  const Status status = Server::Create(ToOptions(*options), port, &entry->server);
  if (status.ok()) {
    *bound_port = entry->server->port();
    *handle = HandleTable<Entry>::Get().Add(std::move(entry));
  }
  return Report(status, error, error_size);
}

// A saved shard, before the start. Its memory is copied.
int tfdist_ps_server_restore_entry(int64_t handle, const char* name, int dtype, uint64_t elements,
                                   const void* data, uint64_t bytes, char* error,
                                   size_t error_size) {
  const std::shared_ptr<Entry> entry = Find(handle);
  if (entry == nullptr) return Report(Unknown(handle), error, error_size);
  if (dtype < static_cast<int>(DType::kFloat16) || dtype > static_cast<int>(DType::kBytes)) {
    const Status status(StatusCode::kInvalidArgument,
                        StrCat("saved shard '", name, "': unknown dtype ", dtype));
    return Report(status, error, error_size);
  }
  auto block = std::make_shared<ps::Block>(bytes);
  if (bytes > 0) std::memcpy(block->data(), data, bytes);
  const std::lock_guard<std::mutex> lock(entry->mutex);
  entry->restored.shards.push_back({name, static_cast<DType>(dtype), elements, std::move(block)});
  return 0;
}

int tfdist_ps_server_restore_progress(int64_t handle, const uint64_t* progress, uint64_t count,
                                      char* error, size_t error_size) {
  const std::shared_ptr<Entry> entry = Find(handle);
  if (entry == nullptr) return Report(Unknown(handle), error, error_size);
  const std::lock_guard<std::mutex> lock(entry->mutex);
  entry->restored.progress.assign(progress, progress + count);
  return 0;
}

// Takes what was restored, and lets workers in.
int tfdist_ps_server_start(int64_t handle, const uint8_t* token, char* error, size_t error_size) {
  const std::shared_ptr<Entry> entry = Find(handle);
  if (entry == nullptr) return Report(Unknown(handle), error, error_size);
  Token bytes;
  std::copy_n(token, bytes.size(), bytes.begin());
  const std::lock_guard<std::mutex> lock(entry->mutex);
  Status status = entry->server->Restore(std::exchange(entry->restored, {}));
  if (status.ok()) status = entry->server->Start(bytes);
  return Report(status, error, error_size);
}

uint64_t tfdist_ps_server_incarnation(int64_t handle) {
  const std::shared_ptr<Entry> entry = Find(handle);
  return entry == nullptr ? 0 : entry->server->incarnation();
}

// 1: there was an event, 0: there was none, -1: the server was closed.
int tfdist_ps_server_wait_event(int64_t handle, double seconds, int* kind, int* worker, char* text,
                                size_t text_size) {
  const std::shared_ptr<Entry> entry = Find(handle);
  if (entry == nullptr) return -1;
  Server::Event event;
  if (!entry->server->WaitForEvent(seconds, &event)) return 0;
  *kind = static_cast<int>(event.kind);
  *worker = event.worker;
  CopyText(event.text, text, text_size);
  return 1;
}

void tfdist_ps_server_stats(int64_t handle, ps::ServerStats* stats) {
  const std::shared_ptr<Entry> entry = Find(handle);
  *stats = entry == nullptr ? ps::ServerStats() : entry->server->stats();
}

// The latest events, oldest first, at most `most`; returns how many.
uint64_t tfdist_ps_server_trace(int64_t handle, ps::TraceEvent* events, uint64_t most) {
  const std::shared_ptr<Entry> entry = Find(handle);
  if (entry == nullptr) return 0;
  const std::vector<ps::TraceEvent> trace = entry->server->trace();
  const uint64_t count = std::min<uint64_t>(most, trace.size());
  std::copy(trace.end() - count, trace.end(), events);
  return count;
}

void tfdist_ps_server_close(int64_t handle) {
  // Here, although somebody may wait for an event and hold another reference.
  if (const auto entry = HandleTable<Entry>::Get().Remove(handle)) entry->server->Close();
}

int tfdist_ps_server_freeze(int64_t handle, int64_t* image, char* error, size_t error_size) {
  const std::shared_ptr<Entry> entry = Find(handle);
  if (entry == nullptr) return Report(Unknown(handle), error, error_size);
  *image =
      HandleTable<ServerImage>::Get().Add(std::make_shared<ServerImage>(entry->server->Freeze()));
  return 0;
}

uint64_t tfdist_ps_image_count(int64_t image) {
  const auto found = HandleTable<ServerImage>::Get().Find(image);
  return found == nullptr ? 0 : found->shards.size();
}

// Shard `i`; what the pointers point to stays until the image is freed. Returns whether there is
// such a shard.
bool tfdist_ps_image_entry(int64_t image, uint64_t i, const char** name, int* dtype,
                           uint64_t* elements, const void** data, uint64_t* bytes) {
  const auto found = HandleTable<ServerImage>::Get().Find(image);
  if (found == nullptr || i >= found->shards.size()) return false;
  const ps::SavedShard& shard = found->shards[i];
  *name = shard.name.c_str();
  *dtype = static_cast<int>(shard.dtype);
  *elements = shard.elements;
  *data = shard.block->data();
  *bytes = shard.block->bytes();
  return true;
}

// Returns whether there is such an image.
bool tfdist_ps_image_progress(int64_t image, const uint64_t** progress, uint64_t* count) {
  const auto found = HandleTable<ServerImage>::Get().Find(image);
  if (found == nullptr) return false;
  *progress = found->progress.data();
  *count = found->progress.size();
  return true;
}

void tfdist_ps_image_free(int64_t image) { HandleTable<ServerImage>::Get().Remove(image); }

}  // extern "C"
