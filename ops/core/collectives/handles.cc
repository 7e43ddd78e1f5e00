#include "core/collectives/handles.h"

#include <utility>

#include "core/base/handle_table.h"

namespace tfdist {
namespace {

HandleTable<Communicator>& Table() { return HandleTable<Communicator>::Get(); }

}  // namespace

int64_t AddHandle(std::shared_ptr<Communicator> communicator) {
  return Table().Add(std::move(communicator));
}

std::shared_ptr<Communicator> FindHandle(int64_t handle) { return Table().Find(handle); }

std::shared_ptr<Communicator> RemoveHandle(int64_t handle) { return Table().Remove(handle); }

}  // namespace tfdist
