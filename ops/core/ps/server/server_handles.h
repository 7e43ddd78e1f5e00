// Parameter servers by the numbers that Python knows them by.
#ifndef TFDIST_OPS_CORE_PS_SERVER_SERVER_HANDLES_H_
#define TFDIST_OPS_CORE_PS_SERVER_SERVER_HANDLES_H_

#include <cstdint>
#include <memory>
#include <mutex>

#include "core/base/handle_table.h"
#include "core/ps/server/server.h"

namespace tfdist::ps {

struct ServerEntry {
  std::unique_ptr<Server> server;
  std::mutex mutex;
  ServerSnapshot restored;  // until the start; guarded by mutex
};

// Null if it was closed.
inline std::shared_ptr<ServerEntry> FindServer(int64_t handle) {
  return HandleTable<ServerEntry>::Get().Find(handle);
}

inline Status UnknownServer(int64_t handle) {
  return Status(StatusCode::kFailedPrecondition,
                StrCat("parameter server ", handle, " was closed"));
}

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_SERVER_SERVER_HANDLES_H_
