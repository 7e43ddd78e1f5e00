// Rows of tables that are taken out of a server as they are, edited, and searched.
#include <algorithm>
#include <cstring>

#include "core/ps/server/service.h"
#include "core/ps/table/table_batch.h"

namespace tfdist::ps {
namespace {

constexpr uint64_t kMostDumped = 1 << 20;  // rows at once

template <typename T>
BlockPtr BlockOf(const std::vector<T>& values) {
  auto block = std::make_shared<Block>(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(block->data(), values.data(), block->bytes());
  return block;
}

template <typename T>
const T* As(const BlockPtr& block) {
  return reinterpret_cast<const T*>(block->data());
}

}  // namespace

std::optional<Answer> Service::Do(Caller* caller, uint64_t number, const ScanRowsRequest& dump,
                                  Incoming*) {
  if (dump.incarnation != 0 && dump.incarnation != incarnation_) {
    return Refuse(*caller, number,
                  Status(StatusCode::kFailedPrecondition,
                         "it was started again while its rows were read: begin anew"));
  }
  const auto sharing = store_->Share();
  const Table& table = *store_->FindTable(dump.table);
  ScanRowsReply reply{incarnation_, dump.cursor, false, 0};
  SavedRows rows;
  reply.more =
      table.ScanRows(std::clamp<uint64_t>(dump.max_rows, 1, kMostDumped), &reply.cursor, &rows);
  reply.rows = rows.ids.size();
  const size_t width = table.config().width, floats = table.content_floats();
  if (!dump.slots && width < floats) {
    for (size_t i = 1; i < reply.rows; ++i) {
      std::copy_n(rows.content.begin() + i * floats, width, rows.content.begin() + i * width);
    }
    rows.content.resize(reply.rows * width);
  }
  return OkAnswer(
      number, reply,
      {BlockOf(rows.ids), BlockOf(rows.used), BlockOf(rows.counts), BlockOf(rows.content)});
}

// Excludes all other changes, so that the log has edits and pushes in the order in which
// they happened: otherwise a server that is restored from it could resurrect a removed row.
std::optional<Answer> Service::Do(Caller* caller, uint64_t number, const EditRowsRequest& request,
                                  Incoming* incoming) {
  if (Status s = CheckLog(); !s.ok()) return Refuse(*caller, number, s);
  const auto excluding = store_->Exclude();
  Worker& worker = *workers_[caller->worker];
  Pusher editor{static_cast<uint32_t>(caller->worker), 0, request.sequence};
  {
    const Lock lock(schedule_mutex_);
    const bool is_repeated = request.sequence != 0 && request.sequence <= worker.edit_sequence;
    if (is_repeated) return OkAnswer(number);
    editor.process = worker.edit_process;
  }
  Table* const table = store_->FindTable(request.table);
  const std::vector<BlockPtr>& parts = incoming->payload;
  TableEdit edit;
  edit.kind = request.kind;
  edit.now = store_->clock().Now();
  edit.count = request.rows;
  edit.ids = As<int64_t>(parts.front());
  edit.content = As<float>(parts.back());
  if (request.kind == EditKind::kRestore) {
    edit.used = As<uint32_t>(parts[1]);
    edit.counts = As<uint32_t>(parts[2]);
  }
  const bool makes = table->EditFloats(request.kind) > 0;
  const std::unique_ptr<TableBatch> room = table->Prepare(
      edit.ids, edit.count, makes ? Table::OnMissing::kCreate : Table::OnMissing::kIgnore,
      /*within_budget=*/true);
  table->Edit(edit);
  log_.Append(editor, table, edit);
  {
    const Lock lock(schedule_mutex_);
    if (request.sequence != 0) worker.edit_sequence = request.sequence;
    ++edits_;
  }
  if (Status s = CheckLog(); !s.ok()) return Refuse(*caller, number, s);
  return OkAnswer(number);
}

std::optional<Answer> Service::Do(Caller*, uint64_t number, const FindRowsRequest& find,
                                  Incoming* request) {
  const auto sharing = store_->Share();
  Table* const table = store_->FindTable(find.table);
  const auto batch = table->Prepare(As<int64_t>(request->payload[0]), find.count,
                                    Table::OnMissing::kIgnore, /*within_budget=*/true);
  const BlockPtr found = store_->pool().AllocateAtLeast(find.count);
  const BlockPtr rows = store_->pool().AllocateAtLeast(
      find.values ? find.count * table->config().width * sizeof(float) : 0);
  table->Find(*batch, reinterpret_cast<uint8_t*>(found->data()),
              find.values ? reinterpret_cast<float*>(rows->data()) : nullptr);
  return OkAnswer(number, FindRowsReply{table->row_count()}, {found, rows});
}

}  // namespace tfdist::ps
