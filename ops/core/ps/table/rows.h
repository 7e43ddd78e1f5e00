// Rows of bytes by 64-bit id. A row stays where it is for as long as it lives.
//
// The index is an open-addressing hash table of row numbers, with one byte of each hash beside it,
// so that a lookup reads on average little more than the one row it wants. The rows lie in slabs,
// so that a table that grows copies no row. Not thread-safe.
#ifndef TFDIST_OPS_CORE_PS_TABLE_ROWS_H_
#define TFDIST_OPS_CORE_PS_TABLE_ROWS_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/base/memory_budget.h"
#include "core/base/mix_id.h"
#include "core/base/page_array.h"

namespace tfdist::ps {

class Rows {
 public:
  using Number = uint32_t;
  static constexpr Number kNone = ~Number{0};

  // What is kept of each row besides its content.
  struct Head {
    int64_t id;
    uint32_t used;   // when last, in the owner's time
    uint32_t count;  // how often
  };

  // `content_bytes` of each row, a multiple of 4.
  explicit Rows(size_t content_bytes);

  // `hash` is MixId(id).
  Number Find(int64_t id, uint64_t hash) const;
  // Has `count` more rows need no memory when they are inserted. Throws std::bad_alloc, or
  // OverBudget if that is asked for; all rows are as they were.
  void Reserve(size_t count, bool within_budget);
  // How many rows can be inserted without memory.
  size_t spare() const { return std::min(spare_rows(), spare_buckets()); }
  // The spare rows without a promise; negative if more were inserted than were promised.
  int64_t unpromised() const { return unpromised_.load(std::memory_order_relaxed); }
  // Promises `count` spare rows to a request; false if fewer are free. Thread-safe, as TakeBack is,
  // also while rows are inserted and erased.
  bool Promise(size_t count) {
    const auto rows = static_cast<int64_t>(count);
    if (unpromised_.fetch_sub(rows, std::memory_order_relaxed) >= rows) return true;
    TakeBack(count);
    return false;
  }
  void TakeBack(size_t count) {
    unpromised_.fetch_add(static_cast<int64_t>(count), std::memory_order_relaxed);
  }
  // The id must not be there. Content and the rest of the head are undefined. Throws as Reserve, if
  // there is no spare row.
  Number Insert(int64_t id, uint64_t hash);
  void Erase(Number row);

  Head& head(Number row) { return *reinterpret_cast<Head*>(at(row)); }
  char* content(Number row) { return at(row) + sizeof(Head); }

  // Numbers below `end` are in use, or free.
  Number end() const { return end_; }
  // Numbers of rows that have memory are below this.
  size_t capacity() const { return slabs_.size() << slab_bits_; }
  // How many get their memory together.
  size_t slab_rows() const { return size_t{1} << slab_bits_; }
  bool in_use(Number row) const { return (used_[row / 64] >> row % 64 & 1) != 0; }
  // One bit for each number, in words of 64.
  const std::vector<uint64_t>& in_use() const { return used_; }
  // Any thread may call this.
  size_t size() const { return size_.load(std::memory_order_relaxed); }
  // All memory that this holds.
  size_t bytes() const;
  void ChargeTo(const std::shared_ptr<MemoryBudget>& budget) { charge_.SetBudget(budget); }
  // What is counted: rows and index.
  size_t counted_bytes() const { return charge_.bytes(); }
  // Of Reserve, about.
  size_t BytesToReserve(size_t count) const;

  // Has the processor fetch what Find will need, and so many bytes of the row's content.
  void PrefetchIndex(uint64_t hash) const;
  void PrefetchRow(uint64_t hash, size_t content_bytes) const;

 private:
  char* at(Number row) const { return slabs_[row >> slab_bits_] + (row & slab_mask_) * row_bytes_; }
  size_t BucketOf(uint64_t hash) const { return hash & (buckets_.size() - 1); }
  static uint8_t TagOf(uint64_t hash) { return static_cast<uint8_t>(hash >> 56) | 1; }
  size_t FindBucket(Number row, uint64_t hash) const;
  void Place(Number row, uint64_t hash);
  size_t spare_rows() const { return free_count_ + capacity() - end_; }
  // At most seven buckets of eight are taken.
  size_t spare_buckets() const { return buckets_.size() / 8 * 7 - size(); }
  void SetSize(size_t size) { size_.store(size, std::memory_order_relaxed); }
  void Grow(bool within_budget);
  void AddSlab(bool within_budget);
  void CollapseLastFull();

  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  const size_t row_bytes_;
  int slab_bits_ = 0;
  size_t slab_mask_ = 0;
  size_t rows_together_ = 0;  // in one piece of `memory_`
  std::vector<char*> slabs_;
  std::vector<std::unique_ptr<char, Free>> memory_;  // of slabs
  size_t memory_used_ = 0;                           // of the last
  PageArray<Number> buckets_;
  PageArray<uint8_t> tags_;  // 0: the bucket is empty
  std::vector<uint64_t> used_;
  // Rows that were erased: the first, each of which has the number of the next as its id.
  Number first_free_ = kNone;
  size_t free_count_ = 0;
  Number end_ = 0;
  std::atomic<size_t> size_{0};
  std::atomic<int64_t> unpromised_{0};
  MemoryCharge charge_{MemoryUse::kPersistent};  // of slabs and the index
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_ROWS_H_
