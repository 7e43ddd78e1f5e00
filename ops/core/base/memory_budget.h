// Counts the memory that a server holds, and limits it.
//
// Blocks (values of variables, payloads of requests and answers), slabs and indexes of tables, and
// the sums of open steps are counted: when they are allocated and freed, not row by row.
//
// Persistent memory (variables, tables, rows) may use only a part of the budget. The rest is left
// to requests in progress, so that a full server still serves the rows that it has: an eighth, or
// the peak memory of concurrent requests, up to half.
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

// Thrown if the budget has no room for an allocation.
class OverBudget : public std::bad_alloc {
 public:
  OverBudget(uint64_t needed, uint64_t held, uint64_t limit)
      : needed_(needed), held_(held), limit_(limit) {}
  const char* what() const noexcept override { return "beyond the memory budget"; }
  // For an error message: the bytes needed, the bytes held, and the budget.
  std::string text() const;

 private:
  const uint64_t needed_, held_, limit_;
};

// Whether memory is held permanently, or until a request is answered.
enum class MemoryUse { kPersistent, kTransient };

// Thread-safe.
class MemoryBudget {
 public:
  // A limit of 0: memory is counted, but never refused.
  explicit MemoryBudget(uint64_t limit) : limit_(limit) {}

  uint64_t limit() const { return limit_; }
  uint64_t held() const { return held_.load(std::memory_order_relaxed); }

  // Counts `bytes`. Throws OverBudget, and counts nothing, if there is no room.
  void Take(uint64_t bytes, MemoryUse use);
  // Whether Take would succeed without reclaiming memory.
  bool HasRoom(uint64_t bytes, MemoryUse use) const {
    return HasRoom(held(), persistent(), bytes, use);
  }
  // Throws as Take, but counts nothing.
  void Check(uint64_t bytes, MemoryUse use) const;
  // Checks the memory that a request needs until it is answered, and updates the peak memory of
  // concurrent requests.
  void Admit(uint64_t bytes);
  // Counts without a check, for a request that can no longer be refused.
  void Add(uint64_t bytes, MemoryUse use);
  void Remove(uint64_t bytes, MemoryUse use);
  // Transient memory becomes persistent, and back again. CheckPersistent throws OverBudget if there
  // is no room for that.
  void CheckPersistent(uint64_t bytes) const;
  void MarkPersistent(uint64_t bytes) { persistent_.fetch_add(bytes, std::memory_order_relaxed); }
  void UnmarkPersistent(uint64_t bytes) { persistent_.fetch_sub(bytes, std::memory_order_relaxed); }

  // `reclaim` frees memory that is held but unused. It is called by any thread, before memory is
  // refused.
  void SetReclaim(std::function<void()> reclaim) { reclaim_ = std::move(reclaim); }
  void Reclaim() const {
    if (reclaim_) reclaim_();
  }

 private:
  uint64_t persistent() const { return persistent_.load(std::memory_order_relaxed); }
  bool HasRoom(uint64_t held, uint64_t persistent, uint64_t bytes, MemoryUse use) const;
  bool MayPersist(uint64_t persistent, uint64_t bytes) const;
  bool TryTake(uint64_t bytes, MemoryUse use);

  const uint64_t limit_;
  std::atomic<uint64_t> held_{0};
  std::atomic<uint64_t> persistent_{0};  // the persistent part of `held_`
  std::atomic<uint64_t> peak_transient_{0};
  std::function<void()> reclaim_;  // set before other threads use the budget
};

// Memory of its owner that is counted as long as this object lives.
class MemoryCharge {
 public:
  explicit MemoryCharge(MemoryUse use) : use_(use) {}
  ~MemoryCharge() { SetBudget(nullptr); }
  MemoryCharge(const MemoryCharge&) = delete;
  MemoryCharge& operator=(const MemoryCharge&) = delete;

  uint64_t bytes() const { return bytes_; }
  bool is_counted() const { return budget_ != nullptr; }
  // Moves the counted bytes to another budget; null: they are not counted.
  void SetBudget(std::shared_ptr<MemoryBudget> budget);
  // With `within_budget`, throws OverBudget as MemoryBudget::Take.
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
