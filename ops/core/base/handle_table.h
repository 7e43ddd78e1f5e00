// Objects by integer handle: Python and the attributes of a graph name an object by its handle, as
// a descriptor names a file.
#ifndef TFDIST_OPS_CORE_BASE_HANDLE_TABLE_H_
#define TFDIST_OPS_CORE_BASE_HANDLE_TABLE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace tfdist {

template <typename T>
class HandleTable {
 public:
  // The process's table for T. Leaked on purpose: a kernel may still use it while the process
  // exits.
  static HandleTable& Get() {
    static HandleTable* const table = new HandleTable;
    return *table;
  }

  // Returns the handle: never zero, and never reused.
  int64_t Add(std::shared_ptr<T> object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    objects_.emplace(next_, std::move(object));
    return next_++;
  }
  // Null if there is no such handle, or it has been removed.
  std::shared_ptr<T> Find(int64_t handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  // Puts another object in the place of the handle's own, which it returns; null, and no change, if
  // the handle has none.
  std::shared_ptr<T> Replace(int64_t handle, std::shared_ptr<T> object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    found->second.swap(object);
    return object;
  }
  std::shared_ptr<T> Remove(int64_t handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

 private:
  std::mutex mutex_;
  int64_t next_ = 1;
  std::unordered_map<int64_t, std::shared_ptr<T>> objects_;
};

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_BASE_HANDLE_TABLE_H_
