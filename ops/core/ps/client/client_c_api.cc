// A worker's client for Python, through ctypes.
//
// Clients and scans are named by handles. A function with an `error` returns a status code (0: OK)
// and writes its message there, cut to `error_size` bytes. The others do nothing if the handle is
// unknown.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/c_error.h"
#include "core/base/handle_table.h"
#include "core/ps/client/client.h"
#include "core/ps/table/rows_c_api.h"

namespace {

using namespace tfdist;  // NOLINT: a C interface, which declares no C++ names
using ps::Client;

// Null if it was closed.
std::shared_ptr<Client> FindClient(int64_t handle) {
  return HandleTable<Client>::Get().Find(handle);
}

// Reports the status of `call(client)`, or that the client was closed.
template <typename Call>
int CallClient(int64_t handle, char* error, size_t error_size, const Call& call) {
  const std::shared_ptr<Client> client = FindClient(handle);
  if (client == nullptr) {
    const Status closed(StatusCode::kFailedPrecondition,
                        StrCat("parameter client ", handle, " was closed"));
    return Report(closed, error, error_size);
  }
  return Report(call(*client), error, error_size);
}

// The status that `call` passes to its `done`.
Status Wait(const std::function<void(ps::Done)>& call) {
  std::promise<Status> ended;
  call([&](const Status& status) { ended.set_value(status); });
  return ended.get_future().get();
}

}  // namespace

extern "C" {

// Sizes of structures that Python declares too. It compares them when it loads the library.
size_t tfdist_sizeof_client_options() { return sizeof(ps::ClientOptions); }
size_t tfdist_sizeof_client_stats() { return sizeof(ps::ClientStats); }
size_t tfdist_sizeof_lookup_stats() { return sizeof(ps::LookupStats); }
size_t tfdist_sizeof_table_config() { return sizeof(ps::TableConfig); }
size_t tfdist_sizeof_row_initializer() { return sizeof(ps::RowInitializer); }

int tfdist_ps_client_create(const ps::ClientOptions* options, int64_t* handle, char* error,
                            size_t error_size) {
  std::unique_ptr<Client> client;
  const Status status = Client::Create(*options, &client);
  if (status.ok()) *handle = HandleTable<Client>::Get().Add(std::move(client));
  return Report(status, error, error_size);
}

int tfdist_ps_client_connect(int64_t handle, int server, const char* address, const uint8_t* key,
                             uint64_t generation, double timeout_seconds, char* error,
                             size_t error_size) {
  return CallClient(handle, error, error_size, [&](Client& client) {
    Key bytes;
    std::copy_n(key, bytes.size(), bytes.begin());
    return client.Connect(server, address, bytes, generation, timeout_seconds);
  });
}

// `server` is -1 if none was lost.
int tfdist_ps_client_wait_for_lost(int64_t handle, double seconds, int* server, char* error,
                                   size_t error_size) {
  return CallClient(handle, error, error_size, [&](Client& client) {
    *server = client.WaitForLost(seconds);
    return Status();
  });
}

// As Client::Waiting; `text` is cut to `size` bytes.
void tfdist_ps_client_waiting(int64_t handle, double seconds, char* text, size_t size) {
  const std::shared_ptr<Client> client = FindClient(handle);
  const std::string waiting = client == nullptr ? "" : client->Waiting(seconds);
  std::snprintf(text, size, "%s", waiting.c_str());
}

void tfdist_ps_client_give_up(int64_t handle, int server, int code, const char* why) {
  if (const auto client = FindClient(handle)) {
    client->GiveUp(server, Status(static_cast<StatusCode>(code), why));
  }
}

void tfdist_ps_client_readmit(int64_t handle, int server) {
  if (const auto client = FindClient(handle)) client->Readmit(server);
}

// As Client::Silent; -1 if the client was closed.
int tfdist_ps_client_silent(int64_t handle, double seconds) {
  const auto client = FindClient(handle);
  return client == nullptr ? -1 : client->Silent(seconds);
}

int tfdist_ps_client_add_parameter(int64_t handle, const char* name, int dtype, uint64_t elements,
                                   int shard_count, const int* servers, const char* const* names,
                                   const uint64_t* firsts, const uint64_t* counts, int* id,
                                   char* error, size_t error_size) {
  return CallClient(handle, error, error_size, [&](Client& client) {
    ps::ParameterSpec spec;
    spec.name = name;
    spec.dtype = static_cast<DType>(dtype);
    spec.elements = elements;
    for (int i = 0; i < shard_count; ++i) {
      spec.shards.push_back({servers[i], names[i], firsts[i], counts[i]});
    }
    return client.parameters().Add(std::move(spec), id);
  });
}

// `count` bindings: each has an element of `parameters`, `slot_counts` and `weight_decays`. `slots`
// has the slots of all bindings, one after the other.
int tfdist_ps_client_bind(int64_t handle, const ps::OptimizerConfig* config, int count,
                          const int* parameters, const int* slot_counts, const int* slots,
                          const double* weight_decays, char* error, size_t error_size) {
  return CallClient(handle, error, error_size, [&](Client& client) {
    std::vector<Client::Binding> bindings(count);
    for (int i = 0; i < count; ++i) {
      bindings[i].parameter = parameters[i];
      bindings[i].slots.assign(slots, slots + slot_counts[i]);
      bindings[i].weight_decay = weight_decays[i];
      slots += slot_counts[i];
    }
    return Wait([&](ps::Done done) {
      client.parameters().Bind(*config, std::move(bindings), std::move(done));
    });
  });
}

void tfdist_ps_client_exclude(int64_t handle, int parameter) {
  if (const auto client = FindClient(handle)) client->parameters().Exclude(parameter);
}

// Adds a table, and creates it where it does not exist. With `resets_slots`, a table that was
// restored with other slots keeps only its values.
int tfdist_ps_client_create_table(int64_t handle, const char* name, const ps::TableConfig* config,
                                  bool resets_slots, int* table, char* error, size_t error_size) {
  return CallClient(handle, error, error_size, [&](Client& client) {
    *table = client.tables().Add(name, *config, resets_slots);
    return Wait([&](ps::Done done) { client.tables().Create(*table, std::move(done)); });
  });
}

// The number of lookups of a group and level, in each execution.
void tfdist_ps_client_set_lookup_group(int64_t handle, int64_t group, int level, uint64_t size) {
  if (const auto client = FindClient(handle))
    client->tables().lookups().groups().SetSize(group, level, size);
}

// Caches up to `rows` rows of a table on this worker, each for `steps` steps.
int tfdist_ps_client_set_cache(int64_t handle, int table, uint64_t rows, uint64_t steps,
                               char* error, size_t error_size) {
  return CallClient(handle, error, error_size, [&](Client& client) {
    return client.tables().lookups().SetCache(table, rows, steps);
  });
}

// Caches up to `rows` rows of a table for `seconds`, for lookups that are served.
int tfdist_ps_client_set_served_cache(int64_t handle, int table, uint64_t rows, double seconds,
                                      char* error, size_t error_size) {
  return CallClient(handle, error, error_size, [&](Client& client) {
    return client.tables().lookups().SetServedCache(table, rows, seconds);
  });
}

void tfdist_ps_client_lookup_stats(int64_t handle, ps::LookupStats* stats) {
  const auto client = FindClient(handle);
  *stats = client == nullptr ? ps::LookupStats() : client->tables().lookup_stats();
}

// The records of data tasks that pushes train; see client/operations/task_commits.h. `numbers`: for
// each of `count` tasks its lease, the first record and the one behind the last.
void tfdist_ps_client_add_batch(int64_t handle, uint64_t stream, const uint64_t* numbers,
                                uint64_t count) {
  const auto client = FindClient(handle);
  if (client == nullptr) return;
  std::vector<ps::TaskCommit> batch(count);
  for (ps::TaskCommit& commit : batch) {
    commit = {numbers[0], numbers[1], numbers[2]};
    numbers += 3;
  }
  client->commits().tasks().Add(stream, std::move(batch));
}

void tfdist_ps_client_forget_stream(int64_t handle, uint64_t stream) {
  if (const auto client = FindClient(handle)) client->commits().tasks().Forget(stream);
}

void tfdist_ps_client_begin_steps(int64_t handle, uint64_t stream, uint64_t steps) {
  if (const auto client = FindClient(handle)) client->commits().tasks().BeginSteps(stream, steps);
}

// The number of refused batches since the last call. Writes at most `max_leases` of the leases of
// their tasks; the others are lost to the caller, and expire.
uint64_t tfdist_ps_client_take_refused(int64_t handle, uint64_t* leases, uint64_t max_leases,
                                       uint64_t* count) {
  const auto client = FindClient(handle);
  std::vector<uint64_t> found;
  const uint64_t refused = client == nullptr ? 0 : client->commits().tasks().TakeRefused(&found);
  *count = std::min<uint64_t>(found.size(), max_leases);
  std::copy_n(found.begin(), *count, leases);
  return refused;
}

// As Client::Resolve, of a generation of `count` workers; `refused`: a server knows a later one.
int tfdist_ps_client_resolve(int64_t handle, uint64_t job, uint64_t generation, uint64_t units,
                             const uint32_t* workers, uint64_t count, bool* refused, char* error,
                             size_t error_size) {
  *refused = false;
  return CallClient(handle, error, error_size, [&](Client& client) {
    ps::ResolveRequest resolve{{job, generation, units}, {workers, workers + count}};
    const Status status =
        Wait([&](ps::Done done) { client.commits().Resolve(std::move(resolve), std::move(done)); });
    *refused = status.code() == StatusCode::kFailedPrecondition;
    return status;
  });
}

void tfdist_ps_client_begin_unit(int64_t handle, uint64_t number) {
  if (const auto client = FindClient(handle)) client->commits().BeginUnit(number);
}

// As Client::RepeatCommit; `open`: a server waits for other members' commits.
int tfdist_ps_client_repeat_commit(int64_t handle, bool* open, char* error, size_t error_size) {
  *open = false;
  return CallClient(handle, error, error_size, [&](Client& client) {
    return Wait([&](ps::Done done) {
      client.commits().RepeatCommit(
          [&, done](const Status& status, const ps::CommitOutcome& outcome) {
            *open = outcome.open;
            done(status);
          });
    });
  });
}

int tfdist_ps_client_push_accumulated(int64_t handle, char* error, size_t error_size) {
  return CallClient(handle, error, error_size,
                    [](Client& client) { return client.parameters().PushAccumulated(); });
}

int tfdist_ps_client_flush(int64_t handle, double timeout_seconds, char* error, size_t error_size) {
  return CallClient(handle, error, error_size,
                    [&](Client& client) { return client.Flush(timeout_seconds); });
}

int tfdist_ps_client_leave(int64_t handle, double timeout_seconds, char* error, size_t error_size) {
  return CallClient(handle, error, error_size,
                    [&](Client& client) { return client.Leave(timeout_seconds); });
}

void tfdist_ps_client_stats(int64_t handle, ps::ClientStats* stats) {
  const auto client = FindClient(handle);
  *stats = client == nullptr ? ps::ClientStats() : client->stats();
}

// Writes the payload sent to, and received from, each server, in bytes; `servers` is their number.
void tfdist_ps_client_traffic(int64_t handle, uint64_t* sent, uint64_t* received, int servers) {
  const auto client = FindClient(handle);
  auto traffic = client == nullptr ? std::vector<ps::ServerTraffic>() : client->Traffic();
  traffic.resize(static_cast<size_t>(servers));
  for (int server = 0; server < servers; ++server) {
    sent[server] = traffic[server].bytes_sent;
    received[server] = traffic[server].bytes_received;
  }
}

void tfdist_ps_client_close(int64_t handle) {
  // Closed here: a pending operation may hold the last reference, and must not join its own thread.
  if (const auto client = HandleTable<Client>::Get().Remove(handle)) client->Close();
}

int64_t tfdist_ps_scan_begin() {
  return HandleTable<ps::RowScan>::Get().Add(std::make_shared<ps::RowScan>());
}

// The next rows of a server, about `max_rows`, with `floats` floats each. They are valid until the
// next call or the end. `more` is false once there are none.
int tfdist_ps_scan_next(int64_t scan, int64_t client_handle, int table, int server,
                        uint64_t max_rows, bool slots, tfdist_ps_rows* rows, uint64_t* floats,
                        bool* more, char* error, size_t error_size) {
  return CallClient(client_handle, error, error_size, [&](Client& client) {
    const auto found = HandleTable<ps::RowScan>::Get().Find(scan);
    if (found == nullptr) {
      return Status(StatusCode::kFailedPrecondition, StrCat("scan ", scan, " has ended"));
    }
    const Status status = Wait([&](ps::Done done) {
      client.tables().Scan(table, server, max_rows, slots, found.get(), std::move(done));
    });
    const ps::SavedRows& all = found->rows;
    *more = found->more;
    *floats = all.ids.empty() ? 0 : all.content.size() / all.ids.size();
    *rows = {all.ids.size(),     0,      all.ids.data(), all.used.data(), all.counts.data(),
             all.content.data(), nullptr};
    return status;
  });
}

void tfdist_ps_scan_end(int64_t scan) { HandleTable<ps::RowScan>::Get().Remove(scan); }

// Stores rows: with slots, or values only, which resets the slots.
int tfdist_ps_import_rows(int64_t client_handle, int table, const tfdist_ps_rows* rows,
                          uint64_t floats, bool slots, char* error, size_t error_size) {
  return CallClient(client_handle, error, error_size, [&](Client& client) {
    ps::TableEdit edit;
    edit.kind = slots ? ps::EditKind::kRestore : ps::EditKind::kReplace;
    edit.count = rows->count;
    edit.ids = rows->ids;
    edit.used = rows->used;
    edit.counts = rows->counts;
    edit.content = rows->content;
    return Wait([&](ps::Done done) { client.tables().Edit(table, edit, floats, std::move(done)); });
  });
}

}  // extern "C"
