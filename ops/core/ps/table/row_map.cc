#include "core/ps/table/row_map.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace tfdist::ps {
namespace {

constexpr size_t kSlabBytes = 256 << 10;
constexpr size_t kMinBuckets = 1024;    // one page of row numbers
constexpr size_t kPageBytes = 2 << 20;  // a huge page

size_t IndexBytes(size_t buckets) { return buckets * (sizeof(RowMap::Row) + sizeof(uint8_t)); }

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // since Linux 6.1
#endif

}  // namespace

RowMap::RowMap(size_t content_bytes)
    : row_bytes_((sizeof(Header) + content_bytes + alignof(Header) - 1) / alignof(Header) *
                 alignof(Header)),
      buckets_(kMinBuckets),
      tags_(kMinBuckets) {
  while (row_bytes_ << (slab_bits_ + 1) <= kSlabBytes) ++slab_bits_;
  slab_mask_ = (size_t{1} << slab_bits_) - 1;
  rows_per_block_ = std::max<size_t>(1, kPageBytes / (row_bytes_ << slab_bits_)) << slab_bits_;
  charge_.Grow(IndexBytes(kMinBuckets), /*within_budget=*/false);
}

RowMap::Row RowMap::Find(int64_t id, uint64_t hash) const {
  const uint8_t tag = TagOf(hash);
  const size_t mask = buckets_.size() - 1;
  for (size_t bucket = BucketOf(hash); tags_[bucket] != 0; bucket = (bucket + 1) & mask) {
    if (tags_[bucket] != tag) continue;
    const Row row = buckets_[bucket];
    if (reinterpret_cast<const Header*>(at(row))->id == id) return row;
  }
  return kNone;
}

void RowMap::Reserve(size_t count, bool within_budget) {
  while (spare_buckets() < count) Grow(within_budget);
  while (spare_rows() < count) AddSlab(within_budget);
}

RowMap::Row RowMap::Insert(int64_t id, uint64_t hash) {
  if (spare() == 0) Reserve(1, /*within_budget=*/false);
  Row row = first_free_;
  if (row != kNone) {
    first_free_ = static_cast<Row>(header(row).id);
    --free_count_;
  } else {
    row = end_++;
    if (end_ % rows_per_block_ == 0) CollapseLastFull();
  }
  in_use_[row / 64] |= uint64_t{1} << row % 64;
  SetSize(size() + 1);
  header(row) = {id, 0, 0};
  PutInBucket(row, hash);
  return row;
}

// The memory is not zeroed, as it may never be used.
void RowMap::AddSlab(bool within_budget) {
  const size_t slab_bytes = row_bytes_ << slab_bits_;
  const size_t bytes = std::max(kPageBytes, slab_bytes);
  // Lists grow first, so that nothing can fail after the slab is allocated.
  slabs_.reserve(slabs_.size() + 1 <= slabs_.capacity() ? 0 : 2 * slabs_.size() + 1);
  memory_.reserve(memory_.size() + 1 <= memory_.capacity() ? 0 : 2 * memory_.size() + 1);
  const size_t words = (((slabs_.size() + 1) << slab_bits_) + 63) / 64;
  if (words > in_use_.capacity()) in_use_.reserve(std::max(words, 2 * in_use_.size()));
  charge_.Grow(slab_bytes, within_budget);
  if (memory_.empty() || memory_used_ + slab_bytes > bytes) {
    char* const fresh = static_cast<char*>(
        std::aligned_alloc(kPageBytes, (bytes + kPageBytes - 1) / kPageBytes * kPageBytes));
    if (fresh == nullptr) {
      charge_.Shrink(slab_bytes);
      throw std::bad_alloc();
    }
    memory_.emplace_back(fresh);
    memory_used_ = 0;
  }
  slabs_.push_back(memory_.back().get() + memory_used_);
  memory_used_ += slab_bytes;
  in_use_.resize(words);
}

// Turns a full block into a huge page: otherwise each row that is read also costs a walk through
// the page tables. Without support by the kernel the rows stay in small pages.
void RowMap::CollapseLastFull() {
  const size_t slab_bytes = row_bytes_ << slab_bits_;
  madvise(memory_[end_ / rows_per_block_ - 1].get(), std::max(kPageBytes, slab_bytes),
          MADV_COLLAPSE);
}

void RowMap::PutInBucket(Row row, uint64_t hash) {
  const size_t mask = buckets_.size() - 1;
  size_t bucket = BucketOf(hash);
  while (tags_[bucket] != 0) bucket = (bucket + 1) & mask;
  buckets_[bucket] = row;
  tags_[bucket] = TagOf(hash);
}

size_t RowMap::FindBucket(Row row, uint64_t hash) const {
  const size_t mask = buckets_.size() - 1;
  size_t bucket = BucketOf(hash);
  while (tags_[bucket] == 0 || buckets_[bucket] != row) bucket = (bucket + 1) & mask;
  return bucket;
}

// Moves back the entries that a search would not find behind the gap (Knuth, TAOCP 6.4, algorithm
// R).
void RowMap::Erase(Row row) {
  const size_t mask = buckets_.size() - 1;
  size_t gap = FindBucket(row, MixId(header(row).id));
  for (size_t next = (gap + 1) & mask; tags_[next] != 0; next = (next + 1) & mask) {
    const size_t home = BucketOf(MixId(header(buckets_[next]).id));
    if (((next - home) & mask) < ((next - gap) & mask)) continue;
    buckets_[gap] = buckets_[next];
    tags_[gap] = tags_[next];
    gap = next;
  }
  tags_[gap] = 0;
  in_use_[row / 64] &= ~(uint64_t{1} << row % 64);
  header(row).id = first_free_;
  first_free_ = row;
  ++free_count_;
  SetSize(size() - 1);
}

void RowMap::Grow(bool within_budget) {
  const size_t buckets = 2 * buckets_.size();
  charge_.Grow(IndexBytes(buckets), within_budget);
  try {
    PageArray<Row> rows(buckets);
    PageArray<uint8_t> tags(buckets);
    rows.swap(&buckets_);
    tags.swap(&tags_);
  } catch (const std::bad_alloc&) {
    charge_.Shrink(IndexBytes(buckets));
    throw;
  }
  charge_.Shrink(IndexBytes(buckets / 2));
  for (Row row = 0; row < end_; ++row) {
    if (in_use(row)) PutInBucket(row, MixId(header(row).id));
  }
}

size_t RowMap::BytesToReserve(size_t count) const {
  if (count <= spare()) return 0;
  size_t buckets = buckets_.size();
  while (buckets / 8 * 7 < size() + count) buckets *= 2;
  // The new index and the old one exist at the same time.
  const size_t index = buckets == buckets_.size() ? 0 : IndexBytes(buckets);
  const size_t rows = count - std::min(count, spare_rows());
  const size_t slabs = (rows + slab_mask_) >> slab_bits_;
  return index + slabs * (row_bytes_ << slab_bits_);
}

size_t RowMap::bytes() const {
  return charge_.bytes() + memory_.capacity() * sizeof(memory_[0]) +
         slabs_.capacity() * sizeof(slabs_[0]) + in_use_.capacity() * sizeof(uint64_t);
}

void RowMap::PrefetchIndex(uint64_t hash) const {
  const size_t bucket = BucketOf(hash);
  __builtin_prefetch(&tags_[bucket]);
  __builtin_prefetch(&buckets_[bucket]);
}

void RowMap::PrefetchRow(uint64_t hash, size_t content_bytes) const {
  const size_t bucket = BucketOf(hash);
  if (tags_[bucket] != TagOf(hash)) return;
  const char* const row = at(buckets_[bucket]);
  for (size_t offset = 0; offset < sizeof(Header) + content_bytes; offset += 64)
    __builtin_prefetch(row + offset);
}

}  // namespace tfdist::ps
