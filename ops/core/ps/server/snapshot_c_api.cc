// What a parameter server saves and goes on from, for Python, through ctypes; as server_c_api.cc.
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
#include "core/ps/protocol/message.h"
#include "core/ps/server/rows_c_api.h"
#include "core/ps/server/server_handles.h"
#include "core/ps/table/table.h"

// A table: what makes it what it is, encoded, and the last step that it has seen.
struct tfdist_ps_saved_table {
  const char* description;
  uint64_t description_bytes;
  const char* name;
  uint64_t content_floats;
  double learning_rate;
  int64_t step;
};

namespace {

using namespace tfdist;  // NOLINT: what follows is C, and names nothing for others
using ps::FindServer;
using ps::ServerSnapshot;
using ps::UnknownServer;

// An image that Python reads, and the memory of what it was given last.
struct Image {
  ServerSnapshot server;
  std::vector<std::string> descriptions;  // of the tables
  ps::SavedRows rows;
};

std::shared_ptr<Image> FindImage(int64_t handle) { return HandleTable<Image>::Get().Find(handle); }

ps::SavedShard* ShardOf(Image* image, uint64_t i) {
  auto &shards = image->server.shards, &aside = image->server.aside;
  if (i < shards.size()) return &shards[i];
  i -= shards.size();
  return i < aside.size() ? &aside[i] : nullptr;
}

// Makes the table among the restored, or finds it there.
Status AddTable(const tfdist_ps_saved_table& saved, std::vector<std::shared_ptr<ps::Table>>* tables,
                int* index) {
  ps::TableRequest request;
  const std::string_view description(saved.description, saved.description_bytes);
  if (!ps::Decode(description, &request).ok() || request.entries.size() != 1) {
    return Status(StatusCode::kInvalidArgument, "a saved table's description does not make sense");
  }
  const std::string& name = request.entries[0].name;
  const ps::TableConfig& config = request.entries[0].config;
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
    // Its slots were reset when the file before had been written: this one has all of its rows.
    break;
  }
  if (Status s = ps::Table::Create(config, &table, name); !s.ok()) return s;
  if (table->content_floats() != saved.content_floats) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("saved table '", name, "': expected rows of ", table->content_floats(),
                         " numbers, received ", saved.content_floats));
  }
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
size_t tfdist_sizeof_saved_rows() { return sizeof(tfdist_ps_rows); }
size_t tfdist_sizeof_saved_table() { return sizeof(tfdist_ps_saved_table); }

// A table, before the start; `index` of the one of its name, which may be there already.
int tfdist_ps_server_restore_table(int64_t handle, const tfdist_ps_saved_table* saved, int* index,
                                   char* error, size_t error_size) {
  const std::shared_ptr<ps::ServerEntry> entry = FindServer(handle);
  if (entry == nullptr) return Report(UnknownServer(handle), error, error_size);
  const std::lock_guard<std::mutex> lock(entry->mutex);
  const Status status =
      WithMemory("a saved table", [&] { return AddTable(*saved, &entry->restored.tables, index); });
  return Report(status, error, error_size);
}

// Rows of a restored table; of `servers`, those that belong to `server`.
int tfdist_ps_server_restore_rows(int64_t handle, int index, const tfdist_ps_rows* rows, int server,
                                  int servers, char* error, size_t error_size) {
  const std::shared_ptr<ps::ServerEntry> entry = FindServer(handle);
  if (entry == nullptr) return Report(UnknownServer(handle), error, error_size);
  const std::lock_guard<std::mutex> lock(entry->mutex);
  const auto& tables = entry->restored.tables;
  if (index < 0 || static_cast<size_t>(index) >= tables.size()) {
    const Status status(StatusCode::kInvalidArgument, StrCat("there is no saved table ", index));
    return Report(status, error, error_size);
  }
  const Status status = WithMemory("saved rows", [&] {
    tables[index]->Restore({rows->count, rows->removed_count, rows->ids, rows->used, rows->counts,
                            rows->content, rows->removed},
                           server, servers);
    return Status();
  });
  return Report(status, error, error_size);
}

// Forgets what was restored.
void tfdist_ps_server_restore_nothing(int64_t handle) {
  const std::shared_ptr<ps::ServerEntry> entry = FindServer(handle);
  if (entry == nullptr) return;
  const std::lock_guard<std::mutex> lock(entry->mutex);
  entry->restored = {};
}

// Takes what was restored, before the start; which does so too.
int tfdist_ps_server_restore_end(int64_t handle, char* error, size_t error_size) {
  const std::shared_ptr<ps::ServerEntry> entry = FindServer(handle);
  if (entry == nullptr) return Report(UnknownServer(handle), error, error_size);
  const std::lock_guard<std::mutex> lock(entry->mutex);
  const Status status = WithMemory("what was restored", [&] {
    return entry->server->Restore(std::exchange(entry->restored, {}));
  });
  return Report(status, error, error_size);
}

// Applies a log of rows to what was restored.
int tfdist_ps_server_replay_log(int64_t handle, const char* path, uint64_t* records,
                                uint64_t* left_out, char* error, size_t error_size) {
  const std::shared_ptr<ps::ServerEntry> entry = FindServer(handle);
  if (entry == nullptr) return Report(UnknownServer(handle), error, error_size);
  const Status status = WithMemory(
      "a log of rows", [&] { return entry->server->ReplayLog(path, records, left_out); });
  return Report(status, error, error_size);
}

void tfdist_ps_server_begin_log(int64_t handle, const char* path) {
  if (const std::shared_ptr<ps::ServerEntry> entry = FindServer(handle))
    entry->server->BeginLog(path);
}

// A saved shard, before the start. Its memory is copied. One that is put `aside` waits until it is
// created.
int tfdist_ps_server_restore_shard(int64_t handle, const char* name, int dtype, uint64_t elements,
                                   const void* data, uint64_t bytes, bool aside, char* error,
                                   size_t error_size) {
  const std::shared_ptr<ps::ServerEntry> entry = FindServer(handle);
  if (entry == nullptr) return Report(UnknownServer(handle), error, error_size);
  if (dtype < static_cast<int>(DType::kFloat16) || dtype > static_cast<int>(DType::kBytes)) {
    const Status status(StatusCode::kInvalidArgument,
                        StrCat("saved shard '", name, "': unknown dtype ", dtype));
    return Report(status, error, error_size);
  }
  const Status status = WithMemory("a saved shard", [&] {
    auto block = std::make_shared<ps::Block>(bytes);
    if (bytes > 0) std::memcpy(block->data(), data, bytes);
    const std::lock_guard<std::mutex> lock(entry->mutex);
    auto& shards = aside ? entry->restored.aside : entry->restored.shards;
    shards.push_back({name, static_cast<DType>(dtype), elements, std::move(block)});
    return Status();
  });
  return Report(status, error, error_size);
}

// The time that restored rows are of, as tfdist_ps_image_time told it.
void tfdist_ps_server_restore_time(int64_t handle, double time) {
  const std::shared_ptr<ps::ServerEntry> entry = FindServer(handle);
  if (entry == nullptr) return;
  const std::lock_guard<std::mutex> lock(entry->mutex);
  entry->restored.time = time;
}

int tfdist_ps_server_restore_progress(int64_t handle, const uint64_t* progress, uint64_t count,
                                      char* error, size_t error_size) {
  const std::shared_ptr<ps::ServerEntry> entry = FindServer(handle);
  if (entry == nullptr) return Report(UnknownServer(handle), error, error_size);
  const std::lock_guard<std::mutex> lock(entry->mutex);
  entry->restored.progress.assign(progress, progress + count);
  return 0;
}

// What the server holds now. Of tables only one copy is taken at a time: all rows, or those that
// changed since the last. What rows go through from then on is kept in the file `log_path`, unless
// that is empty.
int tfdist_ps_server_checkpoint(int64_t handle, bool changed_only, const char* log_path,
                                int64_t* image, char* error, size_t error_size) {
  const std::shared_ptr<ps::ServerEntry> entry = FindServer(handle);
  if (entry == nullptr) return Report(UnknownServer(handle), error, error_size);
  const Status status = WithMemory("a snapshot", [&] {
    auto held = std::make_shared<Image>();
    held->server = entry->server->Freeze(changed_only, log_path);
    for (const auto& table : held->server.tables) {
      held->descriptions.push_back(
          ps::Encode(ps::TableRequest{{{table->name(), table->config(), false}}}));
    }
    *image = HandleTable<Image>::Get().Add(std::move(held));
    return Status();
  });
  return Report(status, error, error_size);
}

// When it was taken, in the time of its rows.
double tfdist_ps_image_time(int64_t image) {
  const auto found = FindImage(image);
  return found == nullptr ? 0 : found->server.time;
}

// The image that was taken last is on disk.
void tfdist_ps_server_saved(int64_t handle) {
  if (const auto entry = FindServer(handle)) entry->server->Saved();
}

// Shards, and then those that are put aside.
uint64_t tfdist_ps_image_count(int64_t image) {
  const auto found = FindImage(image);
  return found == nullptr ? 0 : found->server.shards.size() + found->server.aside.size();
}

uint64_t tfdist_ps_image_aside_count(int64_t image) {
  const auto found = FindImage(image);
  return found == nullptr ? 0 : found->server.aside.size();
}

// Returns whether there is such a table. What is pointed to stays until the image is freed.
bool tfdist_ps_image_table(int64_t image, uint64_t i, tfdist_ps_saved_table* out) {
  const auto found = FindImage(image);
  if (found == nullptr || i >= found->server.tables.size()) return false;
  const ps::Table& table = *found->server.tables[i];
  const std::string& description = found->descriptions[i];
  const ps::StepValues step = table.saved_step();
  *out = {description.data(),     description.size(), table.name().c_str(),
          table.content_floats(), step.learning_rate, step.step};
  return true;
}

// The next rows of a table, about `most`, in memory that stays until the next call for this image,
// which one thread makes at a time. 1: there were some, 0: there were none, -1: there was no memory
// for them, and the image is of no use.
int tfdist_ps_image_next_rows(int64_t image, uint64_t i, uint64_t most, tfdist_ps_rows* out) {
  const auto found = FindImage(image);
  if (found == nullptr || i >= found->server.tables.size()) return 0;
  ps::SavedRows& rows = found->rows;
  rows.ids.clear();
  rows.used.clear();
  rows.counts.clear();
  rows.content.clear();
  rows.removed.clear();
  try {
    if (!found->server.tables[i]->NextSave(most, &rows)) return 0;
  } catch (const std::bad_alloc&) {
    for (const auto& table : found->server.tables) table->EndSave();
    return -1;
  }
  *out = {rows.ids.size(),    rows.removed.size(), rows.ids.data(),    rows.used.data(),
          rows.counts.data(), rows.content.data(), rows.removed.data()};
  return 1;
}

// Shard `i`; what the pointers point to stays until the image is freed. Returns whether there is
// such a shard.
bool tfdist_ps_image_entry(int64_t image, uint64_t i, const char** name, int* dtype,
                           uint64_t* elements, const void** data, uint64_t* bytes) {
  const auto found = FindImage(image);
  const ps::SavedShard* const chosen = found == nullptr ? nullptr : ShardOf(found.get(), i);
  if (chosen == nullptr) return false;
  const ps::SavedShard& shard = *chosen;
  *name = shard.name.c_str();
  *dtype = static_cast<int>(shard.dtype);
  *elements = shard.elements;
  *data = shard.block->data();
  *bytes = shard.block->bytes();
  return true;
}

// Returns whether there is such an image.
bool tfdist_ps_image_progress(int64_t image, const uint64_t** progress, uint64_t* count) {
  const auto found = FindImage(image);
  if (found == nullptr) return false;
  *progress = found->server.progress.data();
  *count = found->server.progress.size();
  return true;
}

void tfdist_ps_image_free(int64_t image) { HandleTable<Image>::Get().Remove(image); }

}  // extern "C"
