#include "core/handles.h"

#include <mutex>
#include <unordered_map>
#include <utility>

namespace tfdist {
namespace {

struct Table {
  std::mutex mutex;
  int64_t next = 1;
  std::unordered_map<int64_t, std::shared_ptr<Communicator>> entries;
};

// Leaked on purpose: a kernel may still look something up while the process exits.
Table& GetTable() {
  static Table* const table = new Table;
  return *table;
}

}  // namespace

int64_t AddHandle(std::shared_ptr<Communicator> communicator) {
  Table& table = GetTable();
  std::lock_guard<std::mutex> lock(table.mutex);
  table.entries.emplace(table.next, std::move(communicator));
  return table.next++;
}

std::shared_ptr<Communicator> FindHandle(int64_t handle) {
  Table& table = GetTable();
  std::lock_guard<std::mutex> lock(table.mutex);
  const auto found = table.entries.find(handle);
  return found == table.entries.end() ? nullptr : found->second;
}

std::shared_ptr<Communicator> RemoveHandle(int64_t handle) {
  Table& table = GetTable();
  std::lock_guard<std::mutex> lock(table.mutex);
  const auto found = table.entries.find(handle);
  if (found == table.entries.end()) return nullptr;
  std::shared_ptr<Communicator> communicator = std::move(found->second);
  table.entries.erase(found);
  return communicator;
}

}  // namespace tfdist
