// How much memory a server holds, and how much it may hold.
//
// Counted are blocks (values of variables, and what requests bring and are answered with), pages of
// tables' rows and indexes, and the sums of open steps: when memory is allocated or freed, not for
// each row.
//
// What stays (variables, tables, rows) is refused beyond a part of the budget. The rest is left to
// the requests in progress, so that a full server still serves the rows that it has: an eighth, or
// as much as they have taken at most, up to half.
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

// Thrown instead of allocating what the budget has no room for.
class OverBudget : public std::bad_alloc {
 public:
  OverBudget(uint64_t needed, uint64_t held, uint64_t limit)
      : needed_(needed), held_(held), limit_(limit) {}
  const char* what() const noexcept override { return "beyond the memory budget"; }
  // For a message: what is needed, what is held, and the budget.
  std::string text() const;

 private:
  const uint64_t needed_, held_, limit_;
};

// Whether memory is allocated for good, or until a request has been answered.
enum class MemoryUse { kPersistent, kTransient };

// Any thread may call it.
class MemoryBudget {
 public:
  // 0: memory is counted, and never refused.
  explicit MemoryBudget(uint64_t limit) : limit_(limit) {}

  uint64_t limit() const { return limit_; }
  uint64_t held() const { return held_.load(std::memory_order_relaxed); }

  // Throws OverBudget, and counts nothing, if there is no room for `bytes`.
  void Take(uint64_t bytes, MemoryUse use);
  // Whether Take would succeed without freeing anything.
  bool HasRoom(uint64_t bytes, MemoryUse use) const { return HasRoom(held(), kept(), bytes, use); }
  // Throws as Take would, and counts nothing.
  void Check(uint64_t bytes, MemoryUse use) const;
  // The same of what a request needs until it has been answered; remembers the most that requests
  // have needed together.
  void Admit(uint64_t bytes);
  // Counts without a check: for a request that cannot be refused any more.
  void Add(uint64_t bytes, MemoryUse use);
  void Remove(uint64_t bytes, MemoryUse use);
  // What was counted as passing stays from now on; whether there is room for that; and back again.
  void Keep(uint64_t bytes) { kept_.fetch_add(bytes, std::memory_order_relaxed); }
  void CheckKept(uint64_t bytes) const;
  void Unkeep(uint64_t bytes) { kept_.fetch_sub(bytes, std::memory_order_relaxed); }

  // Frees what is held and not in use. Called before memory is refused, by any thread.
  void SetReclaim(std::function<void()> reclaim) { reclaim_ = std::move(reclaim); }
  void Reclaim() const {
    if (reclaim_) reclaim_();
  }

 private:
  uint64_t kept() const { return kept_.load(std::memory_order_relaxed); }
  bool HasRoom(uint64_t held, uint64_t kept, uint64_t bytes, MemoryUse use) const;
  bool MayKeep(uint64_t kept, uint64_t bytes) const;
  bool TryTake(uint64_t bytes, MemoryUse use);

  const uint64_t limit_;
  std::atomic<uint64_t> held_{0};
  std::atomic<uint64_t> kept_{0};  // of `held_`, what stays
  std::atomic<uint64_t> most_passing_{0};
  std::function<void()> reclaim_;  // set before other threads come
};

// What somebody has allocated, counted for as long as this lives.
class MemoryCharge {
 public:
  explicit MemoryCharge(MemoryUse use) : use_(use) {}
  ~MemoryCharge() { SetBudget(nullptr); }
  MemoryCharge(const MemoryCharge&) = delete;
  MemoryCharge& operator=(const MemoryCharge&) = delete;

  uint64_t bytes() const { return bytes_; }
  bool is_counted() const { return budget_ != nullptr; }
  // What was counted moves to another budget; null counts nothing.
  void SetBudget(std::shared_ptr<MemoryBudget> budget);
  // Throws OverBudget as MemoryBudget::Take, if it is to be within the budget.
  void Grow(uint64_t bytes, bool within_budget);
  void Shrink(uint64_t bytes);

 private:
  const MemoryUse use_;
  std::shared_ptr<MemoryBudget> budget_;
  uint64_t bytes_ = 0;
};

// A size as TFDIST_PS_MEMORY is written: "31.5M", in units of 1024.
std::string SizeText(uint64_t bytes);

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_BASE_MEMORY_BUDGET_H_
