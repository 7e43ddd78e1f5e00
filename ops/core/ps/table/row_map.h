// A map from 64-bit ids to rows of bytes. A row does not move until it is erased.
//
// The index is an open-addressing hash table of row numbers, with a tag of one byte from each hash
// beside it: a lookup reads on average little more than the row itself. Rows lie in slabs, so that
// a growing map copies no row. Not thread-safe, except for methods that say so.
#ifndef TFDIST_OPS_CORE_PS_TABLE_ROW_MAP_H_
#define TFDIST_OPS_CORE_PS_TABLE_ROW_MAP_H_

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

class RowMap {
 public:
  using Row = uint32_t;  // a row's number: its position in the slabs
  static constexpr Row kNone = ~Row{0};

  // Precedes the content of each row.
  struct Header {
    int64_t id;
    uint32_t used;   // the last use, in the owner's time
    uint32_t count;  // of uses
  };

  // `content_bytes`: of each row; a multiple of 4.
  explicit RowMap(size_t content_bytes);

  // `hash` is MixId(id). Returns kNone if the id has no row.
  Row Find(int64_t id, uint64_t hash) const;
  // Allocates memory for `count` more rows. Throws std::bad_alloc, or OverBudget if
  // `within_budget`; the rows are then unchanged.
  void Reserve(size_t count, bool within_budget);
  // The number of rows that can be inserted without an allocation.
  size_t spare() const { return std::min(spare_rows(), spare_buckets()); }
  // The id must not have a row. The content is undefined. Throws as Reserve if there is no spare
  // row.
  Row Insert(int64_t id, uint64_t hash);
  void Erase(Row row);

  Header& header(Row row) { return *reinterpret_cast<Header*>(at(row)); }
  const Header& header(Row row) const { return *reinterpret_cast<const Header*>(at(row)); }
  char* content(Row row) { return at(row) + sizeof(Header); }
  const char* content(Row row) const { return at(row) + sizeof(Header); }

  // The rows below `end` are in use, or were erased.
  Row end() const { return end_; }
  // The rows below it have memory.
  size_t capacity() const { return slabs_.size() << slab_bits_; }
  // Rows of a slab, which are allocated together.
  size_t slab_rows() const { return size_t{1} << slab_bits_; }
  bool in_use(Row row) const { return (in_use_[row / 64] >> row % 64 & 1) != 0; }
  // The same of all rows, as bits in words of 64.
  const std::vector<uint64_t>& in_use() const { return in_use_; }
  // Thread-safe.
  size_t size() const { return size_.load(std::memory_order_relaxed); }
  // All memory of the map.
  size_t bytes() const;
  void ChargeTo(const std::shared_ptr<MemoryBudget>& budget) { charge_.SetBudget(budget); }
  // The memory that is charged to the budget: slabs and index.
  size_t counted_bytes() const { return charge_.bytes(); }
  // The memory that Reserve would allocate, approximately.
  size_t BytesToReserve(size_t count) const;

  // Prefetch the memory that Find will read, and that many bytes of the row's content.
  void PrefetchIndex(uint64_t hash) const;
  void PrefetchRow(uint64_t hash, size_t content_bytes) const;

 private:
  char* at(Row row) const { return slabs_[row >> slab_bits_] + (row & slab_mask_) * row_bytes_; }
  size_t BucketOf(uint64_t hash) const { return hash & (buckets_.size() - 1); }
  static uint8_t TagOf(uint64_t hash) { return static_cast<uint8_t>(hash >> 56) | 1; }
  size_t FindBucket(Row row, uint64_t hash) const;
  void PutInBucket(Row row, uint64_t hash);
  size_t spare_rows() const { return free_count_ + capacity() - end_; }
  // At most seven of eight buckets are occupied.
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
  size_t rows_per_block_ = 0;  // of `memory_`
  std::vector<char*> slabs_;
  std::vector<std::unique_ptr<char, Free>> memory_;  // of slabs
  size_t memory_used_ = 0;                           // of the last block
  PageArray<Row> buckets_;
  PageArray<uint8_t> tags_;       // 0: the bucket is empty
  std::vector<uint64_t> in_use_;  // one bit for each row
  // The list of erased rows: the first; the id of each is the number of the next.
  Row first_free_ = kNone;
  size_t free_count_ = 0;
  Row end_ = 0;
  std::atomic<size_t> size_{0};
  MemoryCharge charge_{MemoryUse::kPersistent};  // of slabs and the index
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_TABLE_ROW_MAP_H_
