// Accounting and limit of a server's memory.
//
// It counts blocks (values of variables, payloads of requests and answers), the pages of tables'
// rows and indexes, and the sums of open steps. Memory is counted when it is allocated or freed,
// not for each row.
//
// Persistent memory (variables, tables, rows) is refused beyond a part of the budget. The rest is
// reserved for requests in progress, so that a full server still serves its rows. The reserve is
// the largest amount that requests have used together, but at least an eighth and at most a half of
// the budget.
#ifndef TFDIST_OPS_CORE_BASE_MEMORY_BUDGET_H_
#define TFDIST_OPS_CORE_BASE_MEMORY_BUDGET_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>

namespace tfdist::ps {

// Thrown instead of an allocation beyond the budget.
class OverBudget : public std::bad_alloc {
 public:
  OverBudget(uint64_t needed, uint64_t held, uint64_t limit)
      : needed_(needed), held_(held), limit_(limit) {}
  const char* what() const noexcept override { return "beyond the memory budget"; }
  // The needed, the held and the allowed bytes, for a message.
  std::string text() const;

 private:
  const uint64_t needed_, held_, limit_;
};

// kPersistent: until the object is removed. kTransient: until a request has been answered.
enum class MemoryUse { kPersistent, kTransient };

// Thread-safe.
class MemoryBudget {
 public:
  // 0: no limit; memory is only counted.
  explicit MemoryBudget(uint64_t limit) : limit_(limit) {}

  uint64_t limit() const { return limit_; }
  uint64_t held() const { return held_.load(std::memory_order_relaxed); }

  // Counts `bytes`. Throws OverBudget, and counts nothing, if there is no room.
  void Take(uint64_t bytes, MemoryUse use);
  // Whether Take would succeed without a call of the reclaim function.
  bool HasRoom(uint64_t bytes, MemoryUse use) const {
    return HasRoom(held(), persistent(), bytes, use);
  }
  // Throws as Take would; counts nothing.
  void Check(uint64_t bytes, MemoryUse use) const;
  // Check for the transient memory of a request. Updates the peak of all requests in progress,
  // which is the size of the reserve.
  void Admit(uint64_t bytes);
  // Counts without a check, for a request that can no longer be refused.
  void Add(uint64_t bytes, MemoryUse use);
  void Remove(uint64_t bytes, MemoryUse use);
  // Turn counted transient memory into persistent memory, and back.
  void MakePersistent(uint64_t bytes) { persistent_.fetch_add(bytes, std::memory_order_relaxed); }
  void MakeTransient(uint64_t bytes) { persistent_.fetch_sub(bytes, std::memory_order_relaxed); }
  // Throws OverBudget if MakePersistent(bytes) would exceed the persistent part.
  void CheckPersistent(uint64_t bytes) const;

  // Sets the function that frees cached memory. It is called by any thread before a refusal.
  void SetReclaim(std::function<void()> reclaim) { reclaim_ = std::move(reclaim); }
  void Reclaim() const {
    if (reclaim_) reclaim_();
  }

 private:
  uint64_t persistent() const { return persistent_.load(std::memory_order_relaxed); }
  bool HasRoom(uint64_t held, uint64_t persistent, uint64_t bytes, MemoryUse use) const;
  bool HasPersistentRoom(uint64_t persistent, uint64_t bytes) const;
  bool TryTake(uint64_t bytes, MemoryUse use);

  const uint64_t limit_;
  std::atomic<uint64_t> held_{0};
  std::atomic<uint64_t> persistent_{0};  // part of `held_`
  std::atomic<uint64_t> peak_transient_{0};
  std::function<void()> reclaim_;  // set before other threads start
};

// The memory of one owner, counted until the charge is destroyed.
class MemoryCharge {
 public:
  explicit MemoryCharge(MemoryUse use) : use_(use) {}
  ~MemoryCharge() { SetBudget(nullptr); }
  MemoryCharge(const MemoryCharge&) = delete;
  MemoryCharge& operator=(const MemoryCharge&) = delete;

  uint64_t bytes() const { return bytes_; }
  bool is_counted() const { return budget_ != nullptr; }
  // Moves the charge to another budget; null: not counted.
  void SetBudget(std::shared_ptr<MemoryBudget> budget);
  // Throws OverBudget as MemoryBudget::Take does, if `within_budget`.
  void Grow(uint64_t bytes, bool within_budget);
  void Shrink(uint64_t bytes);

 private:
  const MemoryUse use_;
  std::shared_ptr<MemoryBudget> budget_;
  uint64_t bytes_ = 0;
};

// A size in the notation of TFDIST_PS_MEMORY: "31.5M", in units of 1024.
std::string SizeText(uint64_t bytes);

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_BASE_MEMORY_BUDGET_H_
