// The C functions by which Python restores a server from a checkpoint, and reads a snapshot of it.
//
// Input: calls. Python hands over arrays with their sizes, so these are right; all that it has from
// a file is not: names, numbers, descriptions. Restored state can be read back.
#include <memory>
#include <string>
#include <vector>

#include "core/ps/protocol/message.h"
#include "core/ps/table/rows_c_api.h"
#include "core/ps/table/table.h"
#include "fuzz.h"
#include "ps/server_c_api.h"
#include "testing.h"

namespace tfdist::fuzz::snapshot {
namespace {

using namespace ps;

constexpr uint64_t kMaxRows = 16;

// Keeps the compiler from leaving out what reads a snapshot.
volatile uint64_t g_read;

struct Handle {
  Handle() {
    tfdist_ps_server_options options{};
    options.mode = 1;
    options.workers = options.num_aggregate = 2;
    options.threads = 1;
    options.worker_timeout_seconds = options.start_timeout_seconds = 60;
    options.memory_budget = 64 << 20;
    int port = 0;
    CHECK(tfdist_ps_server_create(&options, "127.0.0.1", 0, 0, &server, &port, error,
                                  sizeof(error)) == 0);
  }
  ~Handle() { tfdist_ps_server_close(server); }

  int64_t server = 0;
  char error[512] = "";
};

void RestoreShard(Handle* handle, Input* input) {
  const std::string name = StrCat("shard", input->Below(3));
  const int dtype = input->Below(14);
  const uint64_t elements = input->Number();
  const bool known = dtype >= 1 && dtype <= 11;
  const uint64_t bytes =
      known ? BytesOf(static_cast<DType>(dtype), elements).value_or(UINT64_MAX) : 0;
  if (bytes > 4096) return;
  const std::vector<char> data(bytes, '\x3f');
  tfdist_ps_server_restore_shard(handle->server, name.c_str(), dtype, elements, data.data(), bytes,
                                 input->Bit(), handle->error, sizeof(handle->error));
}

// Finds or adds a table, and gives it rows.
void RestoreTable(Handle* handle, Input* input) {
  TableConfig config;
  config.width = input->Below(8) == 0 ? static_cast<uint32_t>(input->Number()) : 4;
  config.rule = static_cast<RowRule>(1 + input->Below(6));
  config.optimizer.kind = static_cast<OptimizerKind>(1 + input->Below(9));
  if (input->Below(4) == 0) config.max_rows = input->Number();
  std::string description =
      Encode(TableRequest{{{StrCat("table", input->Below(2)), config, input->Bit()}}});
  if (input->Below(8) == 0) description = input->Text(100);
  std::unique_ptr<Table> table;
  TableRequest request;
  const bool known = Decode(description, &request).ok() && request.entries.size() == 1 &&
                     Table::Create(request.entries[0].config, &table).ok();
  tfdist_ps_saved_table saved{};
  saved.description = description.data();
  saved.description_bytes = description.size();
  saved.content_floats = known && input->Below(8) != 0 ? table->content_floats() : input->Number();
  saved.learning_rate = input->Real();
  saved.step = static_cast<int64_t>(input->Number());
  int index = -1;
  if (tfdist_ps_server_restore_table(handle->server, &saved, &index, handle->error,
                                     sizeof(handle->error)) != 0) {
    return;
  }
  // As many numbers as the file says, or the numbers of another table.
  const uint64_t count = input->Below(kMaxRows), removed = input->Below(kMaxRows);
  const uint64_t floats = input->Below(8) != 0 ? saved.content_floats : input->Below(40);
  if (floats > 4096) return;
  std::vector<int64_t> ids(count), gone(removed);
  for (int64_t& id : ids) id = static_cast<int64_t>(input->Number());
  for (int64_t& id : gone) id = static_cast<int64_t>(input->Number());
  const std::vector<uint32_t> used(count, input->Take<uint32_t>()), counts(count, 1);
  const std::vector<float> content(count * floats, 1.5f);
  const tfdist_ps_rows rows{count,         removed,        ids.data(), used.data(),
                            counts.data(), content.data(), gone.data()};
  const int servers = static_cast<int>(input->Below(3)) + 1;
  tfdist_ps_server_restore_rows(handle->server, index, &rows, floats, input->Below(3), servers,
                                handle->error, sizeof(handle->error));
}

void RestoreProgress(Handle* handle, Input* input) {
  std::vector<uint64_t> progress;
  if (input->Bit()) progress = {3, input->Below(4), input->Below(4)};
  for (uint32_t i = input->Below(40); i > 0; --i) progress.push_back(input->Number());
  tfdist_ps_server_restore_progress(handle->server, progress.data(), progress.size(), handle->error,
                                    sizeof(handle->error));
}

// The calls by which a checkpoint reads a server.
void Read(const Handle& server, bool changed_only) {
  int64_t handle = 0;
  char error[512];
  if (tfdist_ps_server_checkpoint(server.server, changed_only, "", &handle, error, sizeof(error)) !=
      0) {
    return;
  }
  uint64_t sum = 0;
  for (uint64_t i = 0; i < tfdist_ps_snapshot_count(handle); ++i) {
    const char* name = nullptr;
    const void* data = nullptr;
    int dtype = 0;
    uint64_t elements = 0, bytes = 0;
    CHECK(tfdist_ps_snapshot_entry(handle, i, &name, &dtype, &elements, &data, &bytes));
    CHECK(bytes == BytesOf(static_cast<DType>(dtype), elements));
    for (uint64_t b = 0; b < bytes; ++b) sum += static_cast<const uint8_t*>(data)[b];
  }
  tfdist_ps_saved_table table{};
  for (uint64_t i = 0; tfdist_ps_snapshot_table(handle, i, &table); ++i) {
    tfdist_ps_rows rows{};
    while (tfdist_ps_snapshot_next_rows(handle, i, 3, &rows) == 1) {
      for (uint64_t f = 0; f < rows.count * table.content_floats; ++f) sum += rows.content[f] > 0;
    }
  }
  g_read = sum;
  tfdist_ps_snapshot_free(handle);
}

void Run(Input input) {
  Handle handle;
  while (!input.empty()) {
    switch (input.Below(8)) {
      case 0:
      case 1:
        RestoreShard(&handle, &input);
        break;
      case 2:
      case 3:
      case 4:
        RestoreTable(&handle, &input);
        break;
      case 5:
        RestoreProgress(&handle, &input);
        break;
      case 6:
        tfdist_ps_server_restore_time(handle.server, input.Real());
        tfdist_ps_server_restore_task(handle.server, input.Text(8).c_str(), input.Number());
        break;
      default:
        if (input.Below(4) == 0) tfdist_ps_server_restore_nothing(handle.server);
        if (tfdist_ps_server_restore_end(handle.server, handle.error, sizeof(handle.error)) != 0) {
          return;
        }
        Read(handle, input.Bit());
    }
  }
  if (tfdist_ps_server_restore_end(handle.server, handle.error, sizeof(handle.error)) == 0) {
    Read(handle, false);
  }
}

FUZZ_TARGET(Run, AnyBytes);

}  // namespace
}  // namespace tfdist::fuzz::snapshot
