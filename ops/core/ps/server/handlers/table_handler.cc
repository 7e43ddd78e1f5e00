#include "core/ps/server/handlers/table_handler.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/checked_size.h"
#include "core/math/cast16.h"
#include "core/ps/table/table_batch.h"

namespace tfdist::ps {
namespace {

constexpr uint64_t kMaxScannedRows = 1 << 20;  // per request

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

Answer TableHandler::HandleCreate(const ClientContext& client, uint64_t id,
                                  const TableRequest& create) {
  TableReply reply;
  std::vector<std::shared_ptr<Table>> replaced;
  const Status status = state_.options.read_only
                            ? state_.store->FindTables(create, &reply)
                            : state_.store->CreateTables(create, &reply, &replaced);
  if (!status.ok()) return state_.Refuse(client, id, status);
  for (const auto& table : replaced) {
    state_.log.Forget(table.get());
    state_.Warn(StrCat("table '", table->name(),
                       "' keeps the values of its checkpoint; its slots, ",
                       SlotsText(table->config()), ", are left out, as ",
                       state_.options.schedule.NameOf(client.worker), " asks"));
  }
  return OkAnswer(id, reply);
}

Answer TableHandler::HandleLookup(const ClientContext& client, const LookupRequest& lookup,
                                  ClientRequest* request) {
  Store& store = *state_.store;
  const auto sharing = store.Share();
  if (Status s = CheckTables(*request, store); !s.ok()) {
    return state_.Refuse(client, request->id, s);
  }
  const double now = store.clock().Now();
  Answer answer = OkAnswer(request->id);
  // All memory is allocated before the first row is made.
  answer.payload.reserve(lookup.entries.size());
  std::vector<std::unique_ptr<TableBatch>> batches;
  batches.reserve(lookup.entries.size());
  size_t max_cast = 0;
  for (size_t i = 0; i < lookup.entries.size(); ++i) {
    const LookupRequest::Entry& entry = lookup.entries[i];
    Table* const table = request->tables[i].table.get();
    request->table = &table->name();
    batches.push_back(
        table->Prepare(reinterpret_cast<const int64_t*>(request->payload[i]->data()), entry.count,
                       lookup.training ? Table::OnMissing::kAdmit : Table::OnMissing::kIgnore,
                       /*within_budget=*/true));
    const size_t elements = entry.count * table->config().width;
    answer.payload.push_back(store.pool().AllocateAtLeast(elements * ByteSize(entry.wire)));
    if (entry.wire != DType::kFloat32) max_cast = std::max(max_cast, elements);
  }
  const BlockPtr wide = store.pool().AllocateAtLeast(max_cast * sizeof(float));
  for (size_t i = 0; i < lookup.entries.size(); ++i) {
    const LookupRequest::Entry& entry = lookup.entries[i];
    Table* const table = request->tables[i].table.get();
    Block* const out = answer.payload[i].get();
    const bool casts = entry.wire != DType::kFloat32;
    auto* const rows = reinterpret_cast<float*>(casts ? wide->data() : out->data());
    table->Lookup(now, *batches[i], lookup.training, rows);
    if (casts) CastFromFloat32(entry.wire, rows, out->data(), entry.count * table->config().width);
  }
  return answer;
}

Answer TableHandler::HandleScan(const ClientContext& client, const ScanRowsRequest& scan,
                                const ClientRequest& request) {
  if (scan.incarnation != 0 && scan.incarnation != state_.incarnation) {
    return state_.Refuse(client, request.id,
                         Status(StatusCode::kFailedPrecondition,
                                "it was started again while its rows were read: begin anew"));
  }
  const auto sharing = state_.store->Share();
  if (Status s = CheckTables(request, *state_.store); !s.ok()) {
    return state_.Refuse(client, request.id, s);
  }
  Table& table = *request.tables.front().table;
  ScanRowsReply reply{state_.incarnation, scan.cursor, false, 0};
  SavedRows rows;
  reply.more =
      table.ScanRows(std::clamp<uint64_t>(scan.max_rows, 1, kMaxScannedRows), &reply.cursor, &rows);
  reply.rows = rows.ids.size();
  const size_t width = table.config().width, floats = table.content_floats();
  if (!scan.slots && width < floats) {
    for (size_t i = 1; i < reply.rows; ++i) {
      std::copy_n(rows.content.begin() + i * floats, width, rows.content.begin() + i * width);
    }
    rows.content.resize(reply.rows * width);
  }
  Answer answer = OkAnswer(
      request.id, reply,
      {BlockOf(rows.ids), BlockOf(rows.used), BlockOf(rows.counts), BlockOf(rows.content)});
  // Counted until the worker has it, and not refused: a full server still hands out its rows.
  for (const BlockPtr& block : answer.payload) block->ChargeTo(state_.store->shared_memory());
  return answer;
}

Answer TableHandler::HandleEdit(const ClientContext& client, const EditRowsRequest& edit,
                                const ClientRequest& request) {
  if (Status s = state_.CheckLog(); !s.ok()) return state_.Refuse(client, request.id, s);
  const auto excluding = state_.store->Exclude();
  WorkerState& worker = state_.WorkerOf(client);
  Pusher editor{static_cast<uint32_t>(client.worker), 0, edit.sequence};
  {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    const bool is_repeated = edit.sequence != 0 && edit.sequence <= worker.edit_sequence;
    if (is_repeated) return OkAnswer(request.id);
    editor.process = worker.edit_process;
  }
  if (Status s = CheckTables(request, *state_.store); !s.ok()) {
    return state_.Refuse(client, request.id, s);
  }
  Table* const table = request.tables.front().table.get();
  const std::vector<BlockPtr>& parts = request.payload;
  TableEdit change;
  change.kind = edit.kind;
  change.now = state_.store->clock().Now();
  change.count = edit.rows;
  change.ids = As<int64_t>(parts.front());
  change.content = As<float>(parts.back());
  if (edit.kind == EditKind::kRestore) {
    change.used = As<uint32_t>(parts[1]);
    change.counts = As<uint32_t>(parts[2]);
  }
  const CheckedSize content = CheckedSize(edit.rows) * table->EditFloats(edit.kind) * sizeof(float);
  if (!content.Is(parts.back()->bytes())) {
    return state_.Refuse(client, request.id,
                         InvalidArgument(StrCat("table '", table->name(), "': expected ",
                                                content.text(), " bytes for ", edit.rows,
                                                " rows, received ", parts.back()->bytes())));
  }
  const bool makes = table->EditFloats(edit.kind) > 0;
  const std::unique_ptr<TableBatch> room = table->Prepare(
      change.ids, change.count, makes ? Table::OnMissing::kCreate : Table::OnMissing::kIgnore,
      /*within_budget=*/true);
  table->Edit(change);
  state_.log.Append(editor, table, change);
  {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    if (edit.sequence != 0) worker.edit_sequence = edit.sequence;
    ++edits_;
  }
  if (Status s = state_.CheckLog(); !s.ok()) return state_.Refuse(client, request.id, s);
  return OkAnswer(request.id);
}

Answer TableHandler::HandleFind(const ClientContext& client, const FindRowsRequest& find,
                                const ClientRequest& request) {
  Store& store = *state_.store;
  const auto sharing = store.Share();
  if (Status s = CheckTables(request, store); !s.ok()) return state_.Refuse(client, request.id, s);
  Table* const table = request.tables.front().table.get();
  const auto batch = table->Prepare(As<int64_t>(request.payload[0]), find.count,
                                    Table::OnMissing::kIgnore, /*within_budget=*/true);
  const BlockPtr found = store.pool().AllocateAtLeast(find.count);
  const BlockPtr rows = store.pool().AllocateAtLeast(
      find.values ? find.count * table->config().width * sizeof(float) : 0);
  table->Find(*batch, reinterpret_cast<uint8_t*>(found->data()),
              find.values ? reinterpret_cast<float*>(rows->data()) : nullptr);
  return OkAnswer(request.id, FindRowsReply{table->row_count()}, {found, rows});
}

}  // namespace tfdist::ps
