#include "core/ps/table_operations.h"

#include <cstring>
#include <utility>

namespace tfdist::ps {

CreateTableOperation::CreateTableOperation(TableDirectory* directory, int table, Done done)
    : PlainOperation(Kind::kOther, StrCat("the creation of table '", directory->name(table), "'"),
                     std::move(done)),
      directory_(directory),
      table_(table) {
  for (int server = 0; server < directory->servers(); ++server) To(server, MessageType::kTable);
}

Status CreateTableOperation::Meta(const Request&, const ServerView&, std::string* meta) {
  *meta = Encode(directory_->RequestFor(table_));
  return Status();
}

Status CreateTableOperation::OnAnswer(const Request& request, ServerView*, std::string_view meta,
                                      uint64_t payload_bytes, std::vector<iovec>*) {
  TableReply reply;
  if (Status s = Decode(meta, &reply); !s.ok()) return s;
  if (reply.tables.size() != 1 || payload_bytes != 0) {
    return Status(StatusCode::kInvalidArgument, "expected the number of one table");
  }
  directory_->Number(request.server, table_, reply.tables[0]);
  return Status();
}

LookupOperation::LookupOperation(const TableDirectory* directory, std::vector<TableLookup> lookups,
                                 bool training, Done done)
    : PlainOperation(Kind::kOther, StrCat("a lookup in ", lookups.size(), " tables"),
                     std::move(done)),
      directory_(directory),
      training_(training),
      received_(directory->servers()) {
  for (TableLookup& lookup : lookups) {
    Table table;
    table.lookup = std::move(lookup);
    table.unique.Add(table.lookup.ids.data(), table.lookup.ids.size());
    table.width = directory->config(table.lookup.table).width;
    table.rows.resize(table.unique.ids().size() * table.width);
    table.parts = IdsByServer(table.unique.ids(), directory->servers()).parts;
    tables_.push_back(std::move(table));
  }
  for (int server = 0; server < directory->servers(); ++server) {
    for (const Table& table : tables_) {
      if (table.parts[server].ids.empty()) continue;
      // The request may outlive this operation.
      auto ids = std::make_shared<std::vector<int64_t>>(table.parts[server].ids);
      Append(&To(server, MessageType::kLookup), ids->data(), ids->size() * sizeof(int64_t), ids);
    }
  }
}

Status LookupOperation::Meta(const Request& request, const ServerView&, std::string* meta) {
  LookupRequest message;
  message.training = training_;
  for (const Table& table : tables_) {
    const size_t count = table.parts[request.server].ids.size();
    if (count == 0) continue;
    message.entries.push_back({0, count});
    uint32_t* const number = &message.entries.back().table;
    if (Status s = directory_->NumberOf(request.server, table.lookup.table, number); !s.ok()) {
      return s;
    }
  }
  *meta = Encode(message);
  return Status();
}

Status LookupOperation::OnAnswer(const Request& request, ServerView*, std::string_view meta,
                                 uint64_t payload_bytes, std::vector<iovec>* target) {
  size_t floats = 0;
  for (const Table& table : tables_) floats += table.parts[request.server].ids.size() * table.width;
  if (!meta.empty() || payload_bytes != floats * sizeof(float)) {
    return Status(StatusCode::kInvalidArgument, StrCat("expected rows of ", floats * sizeof(float),
                                                       " bytes, received ", payload_bytes));
  }
  std::vector<float>& received = received_[request.server];
  received.resize(floats);
  if (floats > 0) target->push_back({received.data(), floats * sizeof(float)});
  return Status();
}

Status LookupOperation::OnPayload(const Request& request) {
  std::vector<float> received = std::exchange(received_[request.server], {});
  const float* from = received.data();
  for (Table& table : tables_) {
    for (const uint32_t place : table.parts[request.server].places) {
      std::memcpy(table.rows.data() + place * table.width, from, table.width * sizeof(float));
      from += table.width;
    }
  }
  bytes_ += received.size() * sizeof(float);
  return Status();
}

void LookupOperation::OnEnd(const Status& status) {
  if (status.ok()) {
    for (const Table& table : tables_) {
      char* to = table.lookup.rows.data;
      const size_t row_bytes = table.width * sizeof(float);
      for (const uint32_t place : table.unique.places()) {
        std::memcpy(to, table.rows.data() + place * table.width, row_bytes);
        to += row_bytes;
      }
    }
  }
  PlainOperation::OnEnd(status);
}

}  // namespace tfdist::ps
