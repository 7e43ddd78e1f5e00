// A worker's client for Python, through ctypes. Every function that can fail returns a status code
// (0: OK) and writes its message into `error`, cut to `error_size` bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/c_error.h"
#include "core/base/handle_table.h"
#include "core/ps/client/client.h"
#include "core/ps/client/client_handles.h"

namespace {

using namespace tfdist;  // NOLINT: what follows is C, and names nothing for others
using ps::Client;
using ps::ClosedClient;
using ps::FindClient;

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
  const std::shared_ptr<Client> client = FindClient(handle);
  if (client == nullptr) return Report(ClosedClient(handle), error, error_size);
  Key bytes;
  std::copy_n(key, bytes.size(), bytes.begin());
  return Report(client->Connect(server, address, bytes, generation, timeout_seconds), error,
                error_size);
}

// `server` is -1 if none was lost.
int tfdist_ps_client_wait_for_lost(int64_t handle, double seconds, int* server, char* error,
                                   size_t error_size) {
  const std::shared_ptr<Client> client = FindClient(handle);
  if (client == nullptr) return Report(ClosedClient(handle), error, error_size);
  *server = client->WaitForLost(seconds);
  return 0;
}

// Fills `text`, an empty one if all servers have answered.
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

int tfdist_ps_client_add_parameter(int64_t handle, const char* name, int dtype, uint64_t elements,
                                   int shard_count, const int* servers, const char* const* names,
                                   const uint64_t* firsts, const uint64_t* counts, int* id,
                                   char* error, size_t error_size) {
  const std::shared_ptr<Client> client = FindClient(handle);
  if (client == nullptr) return Report(ClosedClient(handle), error, error_size);
  ps::ParameterSpec spec;
  spec.name = name;
  spec.dtype = static_cast<DType>(dtype);
  spec.elements = elements;
  for (int i = 0; i < shard_count; ++i) {
    spec.shards.push_back({servers[i], names[i], firsts[i], counts[i]});
  }
  return Report(client->AddParameter(std::move(spec), id), error, error_size);
}

// One of `parameters`, `slot_counts` and `weight_decays` for each binding; the slots of all of
// them, one binding's behind another's, in `slots`.
int tfdist_ps_client_bind(int64_t handle, const ps::OptimizerConfig* config, int count,
                          const int* parameters, const int* slot_counts, const int* slots,
                          const double* weight_decays, char* error, size_t error_size) {
  const std::shared_ptr<Client> client = FindClient(handle);
  if (client == nullptr) return Report(ClosedClient(handle), error, error_size);
  std::vector<Client::Binding> bindings(count);
  for (int i = 0; i < count; ++i) {
    bindings[i].parameter = parameters[i];
    bindings[i].slots.assign(slots, slots + slot_counts[i]);
    bindings[i].weight_decay = weight_decays[i];
    slots += slot_counts[i];
  }
  std::promise<Status> told;
  client->Bind(*config, std::move(bindings), [&](const Status& status) { told.set_value(status); });
  return Report(told.get_future().get(), error, error_size);
}

// Makes a table known, and creates it where it does not exist. One of a checkpoint with other slots
// keeps its values alone if it `resets_slots`.
int tfdist_ps_client_create_table(int64_t handle, const char* name, const ps::TableConfig* config,
                                  bool resets_slots, int* table, char* error, size_t error_size) {
  const std::shared_ptr<Client> client = FindClient(handle);
  if (client == nullptr) return Report(ClosedClient(handle), error, error_size);
  *table = client->AddTable(name, *config, resets_slots);
  std::promise<Status> told;
  client->CreateTable(*table, [&](const Status& status) { told.set_value(status); });
  return Report(told.get_future().get(), error, error_size);
}

// How many lookups there are of a level of a group, in each execution.
void tfdist_ps_client_set_lookup_group(int64_t handle, int64_t group, int level, uint64_t size) {
  if (const auto client = FindClient(handle))
    client->lookups().groups().SetSize(group, level, size);
}

// Keeps up to `rows` rows of a table on this worker, each for `steps` steps.
int tfdist_ps_client_set_cache(int64_t handle, int table, uint64_t rows, uint64_t steps,
                               char* error, size_t error_size) {
  const std::shared_ptr<Client> client = FindClient(handle);
  if (client == nullptr) return Report(ClosedClient(handle), error, error_size);
  return Report(client->lookups().SetCache(table, rows, steps), error, error_size);
}

void tfdist_ps_client_lookup_stats(int64_t handle, ps::LookupStats* stats) {
  const auto client = FindClient(handle);
  *stats = client == nullptr ? ps::LookupStats() : client->lookup_stats();
}

void tfdist_ps_client_exclude(int64_t handle, int parameter) {
  if (const auto client = FindClient(handle)) client->Exclude(parameter);
}

int tfdist_ps_client_flush(int64_t handle, double timeout_seconds, char* error, size_t error_size) {
  const std::shared_ptr<Client> client = FindClient(handle);
  if (client == nullptr) return Report(ClosedClient(handle), error, error_size);
  return Report(client->Flush(timeout_seconds), error, error_size);
}

int tfdist_ps_client_leave(int64_t handle, double timeout_seconds, char* error, size_t error_size) {
  const std::shared_ptr<Client> client = FindClient(handle);
  if (client == nullptr) return Report(ClosedClient(handle), error, error_size);
  return Report(client->Leave(timeout_seconds), error, error_size);
}

void tfdist_ps_client_stats(int64_t handle, ps::ClientStats* stats) {
  const auto client = FindClient(handle);
  *stats = client == nullptr ? ps::ClientStats() : client->stats();
}

void tfdist_ps_client_close(int64_t handle) {
  // Here, because an operation in progress may hold the last reference and must not join its own
  // thread.
  if (const auto client = HandleTable<Client>::Get().Remove(handle)) client->Close();
}

}  // extern "C"
