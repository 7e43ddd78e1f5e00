// The process's communicators by number, so that a graph can name one in an attribute as a file is
// named by its descriptor.
#ifndef TFDIST_OPS_CORE_COLLECTIVES_HANDLES_H_
#define TFDIST_OPS_CORE_COLLECTIVES_HANDLES_H_

#include <cstdint>
#include <memory>

#include "core/collectives/communicator.h"

namespace tfdist {

// Never zero, and never used again.
int64_t AddHandle(std::shared_ptr<Communicator> communicator);
// Null when the number was never given out or has been removed.
std::shared_ptr<Communicator> FindHandle(int64_t handle);
std::shared_ptr<Communicator> RemoveHandle(int64_t handle);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_COLLECTIVES_HANDLES_H_
