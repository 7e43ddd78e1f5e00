#include "core/ps/table/ids_by_server.h"

#include "core/base/mix_id.h"

namespace tfdist::ps {

int ServerOfId(int64_t id, int servers) {
  if (servers == 1) return 0;
  const uint64_t hash = MixId(static_cast<int64_t>(MixId(id)));
  return static_cast<int>((hash >> 32) * static_cast<uint64_t>(servers) >> 32);
}

IdsByServer::IdsByServer(const std::vector<int64_t>& ids, int servers) : parts(servers) {
  for (size_t index = 0; index < ids.size(); ++index) {
    Part& part = parts[ServerOfId(ids[index], servers)];
    part.ids.push_back(ids[index]);
    part.indices.push_back(static_cast<uint32_t>(index));
  }
}

}  // namespace tfdist::ps
