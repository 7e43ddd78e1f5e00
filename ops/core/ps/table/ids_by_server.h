// Which server holds the rows of an id.
#ifndef TFDIST_OPS_CORE_PS_TABLE_IDS_BY_SERVER_H_
#define TFDIST_OPS_CORE_PS_TABLE_IDS_BY_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfdist::ps {

// The server that holds the rows of an id. Uses other bits than the servers' own tables.
int ServerOfId(int64_t id, int servers);

// A list of ids by server.
struct IdsByServer {
  IdsByServer(const std::vector<int64_t>& ids, int servers);

  struct Part {
    std::vector<int64_t> ids;
    std::vector<uint32_t> indices;  // in the list of all
  };
  std::vector<Part> parts;
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_IDS_BY_SERVER_H_
