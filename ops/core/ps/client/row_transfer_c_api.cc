// Rows of tables for Python, as they are on the servers; as client_c_api.cc.
#include <cstdint>
#include <functional>
#include <future>
#include <memory>

#include "core/base/c_error.h"
#include "core/base/handle_table.h"
#include "core/ps/client/client.h"
#include "core/ps/client/client_handles.h"
#include "core/ps/server/rows_c_api.h"

namespace {

using namespace tfdist;  // NOLINT: what follows is C, and names nothing for others
using ps::ClosedClient;

Status Wait(const std::function<void(ps::Done)>& call) {
  std::promise<Status> told;
  call([&](const Status& status) { told.set_value(status); });
  return told.get_future().get();
}

}  // namespace

extern "C" {

int64_t tfdist_ps_dump_begin() {
  return HandleTable<ps::RowDump>::Get().Add(std::make_shared<ps::RowDump>());
}

// The next rows of a server, about `most`, of so many `floats`; they stay until the next call or
// the end. `more` is false once there are none.
int tfdist_ps_dump_next(int64_t dump, int64_t client_handle, int table, int server, uint64_t most,
                        bool slots, tfdist_ps_rows* rows, uint64_t* floats, bool* more, char* error,
                        size_t error_size) {
  const std::shared_ptr<ps::Client> client = ps::FindClient(client_handle);
  const auto found = HandleTable<ps::RowDump>::Get().Find(dump);
  if (client == nullptr || found == nullptr) {
    return Report(ClosedClient(client_handle), error, error_size);
  }
  const Status status = Wait([&](ps::Done done) {
    client->Dump(table, server, most, slots, found.get(), std::move(done));
  });
  const ps::SavedRows& all = found->rows;
  *more = found->more;
  *floats = all.ids.empty() ? 0 : all.content.size() / all.ids.size();
  *rows = {all.ids.size(),     0,      all.ids.data(), all.used.data(), all.counts.data(),
           all.content.data(), nullptr};
  return Report(status, error, error_size);
}

void tfdist_ps_dump_end(int64_t dump) { HandleTable<ps::RowDump>::Get().Remove(dump); }

// Puts rows in place: with slots, or values only, which resets the slots.
int tfdist_ps_rows_assign(int64_t client_handle, int table, const tfdist_ps_rows* rows,
                          uint64_t floats, bool slots, char* error, size_t error_size) {
  const std::shared_ptr<ps::Client> client = ps::FindClient(client_handle);
  if (client == nullptr) return Report(ClosedClient(client_handle), error, error_size);
  ps::TableEdit edit;
  edit.kind = slots ? ps::EditKind::kRestore : ps::EditKind::kReplace;
  edit.count = rows->count;
  edit.ids = rows->ids;
  edit.used = rows->used;
  edit.counts = rows->counts;
  edit.content = rows->content;
  return Report(
      Wait([&](ps::Done done) { client->EditRows(table, edit, floats, std::move(done)); }), error,
      error_size);
}

}  // extern "C"
