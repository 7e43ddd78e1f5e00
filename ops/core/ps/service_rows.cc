// Rows of tables that are taken out of a server and put into it as they are.
#include <algorithm>
#include <cstring>

#include "core/ps/service.h"
#include "core/ps/table_batch.h"

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

std::optional<Answer> Service::Do(Caller* caller, uint64_t number, const DumpRequest& dump,
                                  Incoming*) {
  if (dump.incarnation != 0 && dump.incarnation != incarnation_) {
    return Refuse(*caller, number,
                  Status(StatusCode::kFailedPrecondition,
                         "it was started again while its rows were read: begin anew"));
  }
  const auto sharing = store_->Share();
  const Table& table = *store_->FindTable(dump.table);
  DumpReply reply{incarnation_, dump.cursor, false, 0};
  SavedRows rows;
  reply.more = table.Dump(std::clamp<uint64_t>(dump.most, 1, kMostDumped), &reply.cursor, &rows);
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

std::optional<Answer> Service::Do(Caller* caller, uint64_t number, const AssignRowsRequest& assign,
                                  Incoming* request) {
  if (Status s = CheckLog(); !s.ok()) return Refuse(*caller, number, s);
  const auto sharing = store_->Share();
  Table* const table = store_->FindTable(assign.table);
  const std::vector<BlockPtr>& parts = request->payload;
  const auto* const ids = As<int64_t>(parts[0]);
  const std::unique_ptr<Table::Batch> room =
      table->Prepare(ids, assign.rows, Table::Makes::kAll, /*within_budget=*/true);
  if (assign.slots) {
    const SavedRowsView rows{
        assign.rows,         0,      ids, As<uint32_t>(parts[1]), As<uint32_t>(parts[2]),
        As<float>(parts[3]), nullptr};
    table->Restore(rows);
    log_.Append(table, rows);
  } else {
    const SavedRows made =
        table->NewRows(store_->clock().Now(), ids, assign.rows, As<float>(parts[1]));
    const SavedRowsView rows{assign.rows,         0,      ids, made.used.data(), made.counts.data(),
                             made.content.data(), nullptr};
    table->Restore(rows);
    log_.Append(table, rows);
  }
  if (Status s = CheckLog(); !s.ok()) return Refuse(*caller, number, s);
  return OkAnswer(number);
}

}  // namespace tfdist::ps
