#include "core/ps/table/ids_by_server.h"

#include "core/base/mix_id.h"

namespace tfdist::ps {

int ServerOfId(int64_t id, int servers) {
  if (servers == 1) return 0;
  const uint64_t hash = MixId(static_cast<int64_t>(MixId(id)));
  return static_cast<int>((hash >> 32) * static_cast<uint64_t>(servers) >> 32);
}

IdsByServer::IdsByServer(const std::vector<int64_t>& ids, int servers) : parts(servers) {
  for (size_t place = 0; place < ids.size(); ++place) {
    Part& part = parts[ServerOfId(ids[place], servers)];
    part.ids.push_back(ids[place]);
    part.places.push_back(static_cast<uint32_t>(place));
  }
}

}  // namespace tfdist::ps
