#include "core/ps/client/operations/row_transfer.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace tfdist::ps {
namespace {

// The items of `all` at `indices`, `each` per index.
template <typename T>
std::shared_ptr<std::vector<T>> Gather(const T* all, const std::vector<uint32_t>& indices,
                                       size_t each) {
  auto some = std::make_shared<std::vector<T>>();
  some->reserve(indices.size() * each);
  for (const uint32_t index : indices) {
    some->insert(some->end(), all + index * each, all + (index + 1) * each);
  }
  return some;
}

template <typename T>
iovec PieceOf(std::vector<T>* values) {
  return {values->data(), values->size() * sizeof(T)};
}

}  // namespace

ScanRowsOperation::ScanRowsOperation(const TableDirectory* directory, int table, int server,
                                     uint64_t max_rows, bool slots, RowScan* scan, Done done)
    : PlainOperation(Kind::kOther, StrCat("a scan of table '", directory->name(table), "'"),
                     std::move(done)),
      directory_(directory),
      table_(table),
      max_rows_(max_rows),
      slots_(slots),
      begin_{scan->incarnation, scan->cursor, true, {}},
      scan_(scan) {
  To(server, MessageType::kScanRows);
}

Status ScanRowsOperation::Meta(const Request& request, const ServerView&, std::string* meta) {
  ScanRowsRequest message;
  message.incarnation = begin_.incarnation;
  message.cursor = begin_.cursor;
  message.max_rows = max_rows_;
  message.slots = slots_;
  const Status status = directory_->FindTableId(request.server, table_, &message.table);
  if (status.ok()) *meta = Encode(message);
  return status;
}

Status ScanRowsOperation::OnAnswer(const Request&, ServerView*, std::string_view meta,
                                   uint64_t payload_bytes, std::vector<iovec>* target) {
  ScanRowsReply reply;
  if (Status s = Decode(meta, &reply); !s.ok()) return s;
  constexpr uint64_t kHead = sizeof(int64_t) + 2 * sizeof(uint32_t);
  const uint64_t row_bytes = reply.rows == 0 ? 0 : payload_bytes / reply.rows;
  if (reply.rows * row_bytes != payload_bytes || (reply.rows > 0 && row_bytes <= kHead) ||
      (reply.rows > 0 && row_bytes % sizeof(float) != 0)) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat(reply.rows, " rows of ", payload_bytes, " bytes"));
  }
  scan_->incarnation = reply.incarnation;
  scan_->cursor = reply.cursor;
  scan_->more = reply.more;
  SavedRows& rows = scan_->rows;
  rows.ids.resize(reply.rows);
  rows.used.resize(reply.rows);
  rows.counts.resize(reply.rows);
  rows.content.resize(reply.rows * (row_bytes - std::min(row_bytes, kHead)) / sizeof(float));
  if (reply.rows > 0) {
    target->insert(target->end(), {PieceOf(&rows.ids), PieceOf(&rows.used), PieceOf(&rows.counts),
                                   PieceOf(&rows.content)});
  }
  return Status();
}

EditRowsOperation::EditRowsOperation(const TableDirectory* directory, int table,
                                     const TableEdit& edit, uint64_t floats,
                                     std::vector<uint64_t>* sequences, Done done)
    : PlainOperation(Kind::kEdit, StrCat("an edit of rows of table '", directory->name(table), "'"),
                     std::move(done)),
      directory_(directory),
      table_(table),
      kind_(edit.kind),
      floats_(floats),
      sequences_(sequences),
      parts_(directory->servers()) {
  std::vector<std::vector<uint32_t>> indices(directory->servers());
  for (size_t i = 0; i < edit.count; ++i) {
    indices[ServerOfId(edit.ids[i], directory->servers())].push_back(static_cast<uint32_t>(i));
  }
  const auto append = [this](int server, const auto& values) {
    Append(&To(server, MessageType::kEditRows), values->data(),
           values->size() * sizeof(values->front()), values);
  };
  for (int server = 0; server < directory->servers(); ++server) {
    parts_[server].rows = indices[server].size();
    if (kind_ == EditKind::kClear) To(server, MessageType::kEditRows);
    if (indices[server].empty()) continue;
    append(server, Gather(edit.ids, indices[server], 1));
    if (kind_ == EditKind::kRestore) {
      append(server, Gather(edit.used, indices[server], 1));
      append(server, Gather(edit.counts, indices[server], 1));
    }
    if (floats > 0) append(server, Gather(edit.content, indices[server], floats));
  }
}

Status EditRowsOperation::Meta(const Request& request, const ServerView&, std::string* meta) {
  Part& part = parts_[request.server];
  EditRowsRequest message;
  const Status status = directory_->FindTableId(request.server, table_, &message.table);
  if (!status.ok()) return status;
  if (part.sequence == 0) part.sequence = ++(*sequences_)[request.server];
  message.kind = kind_;
  message.rows = part.rows;
  message.floats = floats_;
  message.sequence = part.sequence;
  *meta = Encode(message);
  return Status();
}

FindRowsOperation::FindRowsOperation(const TableDirectory* directory, int table,
                                     const std::vector<int64_t>& ids, const FoundRows& to,
                                     Done done)
    : PlainOperation(Kind::kOther, StrCat("a search in table '", directory->name(table), "'"),
                     std::move(done)),
      directory_(directory),
      table_(table),
      width_(to.rows == nullptr ? 0 : directory->config(table).width),
      to_(to),
      parts_(directory->servers()) {
  std::vector<IdsByServer::Part> by_server = IdsByServer(ids, directory->servers()).parts;
  for (int server = 0; server < directory->servers(); ++server) {
    parts_[server].indices = std::move(by_server[server].indices);
    if (to.size != nullptr) To(server, MessageType::kFindRows);
    if (parts_[server].indices.empty()) continue;
    auto wanted = std::make_shared<std::vector<int64_t>>(std::move(by_server[server].ids));
    Append(&To(server, MessageType::kFindRows), wanted->data(), wanted->size() * sizeof(int64_t),
           wanted);
  }
  if (to.size != nullptr) *to.size = 0;
}

Status FindRowsOperation::Meta(const Request& request, const ServerView&, std::string* meta) {
  FindRowsRequest message;
  message.count = parts_[request.server].indices.size();
  message.values = width_ > 0;
  const Status status = directory_->FindTableId(request.server, table_, &message.table);
  if (status.ok()) *meta = Encode(message);
  return status;
}

Status FindRowsOperation::OnAnswer(const Request& request, ServerView*, std::string_view meta,
                                   uint64_t payload_bytes, std::vector<iovec>* target) {
  Part& part = parts_[request.server];
  FindRowsReply reply;
  if (Status s = Decode(meta, &reply); !s.ok()) return s;
  const size_t count = part.indices.size();
  const uint64_t expected = count * (1 + width_ * sizeof(float));
  if (payload_bytes != expected) {
    return Status(StatusCode::kInvalidArgument, StrCat("expected ", count, " rows of ", expected,
                                                       " bytes, received ", payload_bytes));
  }
  part.size = reply.rows;
  part.found.resize(count);
  part.rows.resize(count * width_);
  if (count > 0) target->push_back(PieceOf(&part.found));
  if (width_ > 0 && count > 0) target->push_back(PieceOf(&part.rows));
  return Status();
}

Status FindRowsOperation::OnPayload(const Request& request) {
  Part& part = parts_[request.server];
  for (size_t i = 0; i < part.indices.size(); ++i) {
    to_.found[part.indices[i]] = part.found[i];
    std::copy_n(part.rows.begin() + i * width_, width_, to_.rows + part.indices[i] * width_);
  }
  if (to_.size != nullptr) *to_.size += part.size;
  return Status();
}

}  // namespace tfdist::ps
