// Tables are created on all servers.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_TABLE_OPERATIONS_H_
#define TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_TABLE_OPERATIONS_H_

#include <string>
#include <string_view>
#include <vector>

#include "core/ps/client/operations/operation.h"
#include "core/ps/client/operations/table_directory.h"

namespace tfdist::ps {

class CreateTableOperation : public PlainOperation {
 public:
  CreateTableOperation(TableDirectory* directory, int table, Done done);

  Status Meta(const Request& request, const ServerView& view, std::string* meta) override;
  Status OnAnswer(const Request& request, ServerView* view, std::string_view meta,
                  uint64_t payload_bytes, std::vector<iovec>* target) override;

 private:
  TableDirectory* const directory_;
  const int table_;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_OPERATIONS_TABLE_OPERATIONS_H_
