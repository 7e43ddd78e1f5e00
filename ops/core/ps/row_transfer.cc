#include "core/ps/row_transfer.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace tfdist::ps {
namespace {

// The items of `all` at `places`, `each` to a place.
template <typename T>
std::shared_ptr<std::vector<T>> Gather(const T* all, const std::vector<uint32_t>& places,
                                       size_t each) {
  auto some = std::make_shared<std::vector<T>>();
  some->reserve(places.size() * each);
  for (const uint32_t place : places) {
    some->insert(some->end(), all + place * each, all + (place + 1) * each);
  }
  return some;
}

template <typename T>
iovec PieceOf(std::vector<T>* values) {
  return {values->data(), values->size() * sizeof(T)};
}

}  // namespace

DumpOperation::DumpOperation(const TableDirectory* directory, int table, int server, uint64_t most,
                             bool slots, RowDump* dump, Done done)
    : PlainOperation(Kind::kOther, StrCat("a dump of table '", directory->name(table), "'"),
                     std::move(done)),
      directory_(directory),
      table_(table),
      most_(most),
      slots_(slots),
      begun_{dump->incarnation, dump->cursor, true, {}},
      dump_(dump) {
  To(server, MessageType::kDump);
}

Status DumpOperation::Meta(const Request& request, const ServerView&, std::string* meta) {
  DumpRequest message;
  message.incarnation = begun_.incarnation;
  message.cursor = begun_.cursor;
  message.most = most_;
  message.slots = slots_;
  const Status status = directory_->NumberOf(request.server, table_, &message.table);
  if (status.ok()) *meta = Encode(message);
  return status;
}

Status DumpOperation::OnAnswer(const Request&, ServerView*, std::string_view meta,
                               uint64_t payload_bytes, std::vector<iovec>* target) {
  DumpReply reply;
  if (Status s = Decode(meta, &reply); !s.ok()) return s;
  constexpr uint64_t kHead = sizeof(int64_t) + 2 * sizeof(uint32_t);
  const uint64_t row_bytes = reply.rows == 0 ? 0 : payload_bytes / reply.rows;
  if (reply.rows * row_bytes != payload_bytes || (reply.rows > 0 && row_bytes <= kHead) ||
      (reply.rows > 0 && row_bytes % sizeof(float) != 0)) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat(reply.rows, " rows of ", payload_bytes, " bytes"));
  }
  dump_->incarnation = reply.incarnation;
  dump_->cursor = reply.cursor;
  dump_->more = reply.more;
  SavedRows& rows = dump_->rows;
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

AssignRowsOperation::AssignRowsOperation(const TableDirectory* directory, int table,
                                         const SavedRowsView& rows, uint64_t floats, bool slots,
                                         Done done)
    : PlainOperation(Kind::kOther,
                     StrCat("an assignment of rows of table '", directory->name(table), "'"),
                     std::move(done)),
      directory_(directory),
      table_(table),
      floats_(floats),
      slots_(slots),
      counts_(directory->servers()) {
  std::vector<std::vector<uint32_t>> places(directory->servers());
  for (size_t i = 0; i < rows.count; ++i) {
    places[ServerOfId(rows.ids[i], directory->servers())].push_back(static_cast<uint32_t>(i));
  }
  const auto append = [this](int server, const auto& values) {
    Append(&To(server, MessageType::kAssignRows), values->data(),
           values->size() * sizeof(values->front()), values);
  };
  for (int server = 0; server < directory->servers(); ++server) {
    counts_[server] = places[server].size();
    if (places[server].empty()) continue;
    append(server, Gather(rows.ids, places[server], 1));
    if (slots) {
      append(server, Gather(rows.used, places[server], 1));
      append(server, Gather(rows.counts, places[server], 1));
    }
    append(server, Gather(rows.content, places[server], floats));
  }
}

Status AssignRowsOperation::Meta(const Request& request, const ServerView&, std::string* meta) {
  AssignRowsRequest message;
  message.rows = counts_[request.server];
  message.floats = floats_;
  message.slots = slots_;
  const Status status = directory_->NumberOf(request.server, table_, &message.table);
  if (status.ok()) *meta = Encode(message);
  return status;
}

}  // namespace tfdist::ps
