#include "core/ps/client/operations/table_operations.h"

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

}  // namespace tfdist::ps
