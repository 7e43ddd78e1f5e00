// The process's clients by number, so that a graph can name one in an attribute.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_CLIENT_HANDLES_H_
#define TFDIST_OPS_CORE_PS_CLIENT_CLIENT_HANDLES_H_

#include <cstdint>
#include <memory>

#include "core/base/handle_table.h"
#include "core/ps/client/client.h"

namespace tfdist::ps {

// Null when the number was never given out, or the client was closed.
inline std::shared_ptr<Client> FindClient(int64_t handle) {
  return HandleTable<Client>::Get().Find(handle);
}

inline Status ClosedClient(int64_t handle) {
  return Status(StatusCode::kFailedPrecondition,
                StrCat("parameter client ", handle, " was closed"));
}

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_CLIENT_HANDLES_H_
