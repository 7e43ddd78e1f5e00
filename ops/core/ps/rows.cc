#include "core/ps/rows.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace tfdist::ps {
namespace {

constexpr size_t kSlabBytes = 256 << 10;
constexpr size_t kFirstBuckets = 1024;  // a page
constexpr size_t kPageBytes = 2 << 20;  // a huge page

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // since Linux 6.1
#endif

}  // namespace

Rows::Rows(size_t content_bytes)
    : row_bytes_((sizeof(Head) + content_bytes + alignof(Head) - 1) / alignof(Head) *
                 alignof(Head)),
      buckets_(kFirstBuckets),
      tags_(kFirstBuckets) {
  while (row_bytes_ << (slab_bits_ + 1) <= kSlabBytes) ++slab_bits_;
  slab_mask_ = (size_t{1} << slab_bits_) - 1;
}

Rows::Number Rows::Find(int64_t id, uint64_t hash) const {
  const uint8_t tag = TagOf(hash);
  const size_t mask = buckets_.size() - 1;
  for (size_t bucket = BucketOf(hash); tags_[bucket] != 0; bucket = (bucket + 1) & mask) {
    if (tags_[bucket] != tag) continue;
    const Number row = buckets_[bucket];
    if (reinterpret_cast<const Head*>(at(row))->id == id) return row;
  }
  return kNone;
}

Rows::Number Rows::Insert(int64_t id, uint64_t hash) {
  // At most seven buckets of eight are taken.
  if ((size_ + 1) * 8 > buckets_.size() * 7) Grow();
  Number row;
  if (!free_.empty()) {
    row = free_.back();
    free_.pop_back();
  } else {
    row = end_++;
    if ((row & slab_mask_) == 0) {
      AddSlab();
    }
    if (row % 64 == 0) used_.push_back(0);
  }
  used_[row / 64] |= uint64_t{1} << row % 64;
  ++size_;
  head(row) = {id, 0, 0};
  Place(row, hash);
  return row;
}

// Not zeroed: it may never be used. What is full becomes one huge page, else each row that is read
// costs a walk through the page tables too; where there are none, all works as well.
void Rows::AddSlab() {
  const size_t slab_bytes = row_bytes_ << slab_bits_;
  const size_t bytes = std::max(kPageBytes, slab_bytes);
  if (memory_.empty() || memory_used_ + slab_bytes > bytes) {
    if (!memory_.empty()) madvise(memory_.back().get(), bytes, MADV_COLLAPSE);
    memory_.emplace_back(static_cast<char*>(
        std::aligned_alloc(kPageBytes, (bytes + kPageBytes - 1) / kPageBytes * kPageBytes)));
    if (memory_.back() == nullptr) throw std::bad_alloc();
    memory_used_ = 0;
  }
  slabs_.push_back(memory_.back().get() + memory_used_);
  memory_used_ += slab_bytes;
}

void Rows::Place(Number row, uint64_t hash) {
  const size_t mask = buckets_.size() - 1;
  size_t bucket = BucketOf(hash);
  while (tags_[bucket] != 0) bucket = (bucket + 1) & mask;
  buckets_[bucket] = row;
  tags_[bucket] = TagOf(hash);
}

size_t Rows::FindBucket(Number row, uint64_t hash) const {
  const size_t mask = buckets_.size() - 1;
  size_t bucket = BucketOf(hash);
  while (tags_[bucket] == 0 || buckets_[bucket] != row) bucket = (bucket + 1) & mask;
  return bucket;
}

// Moves back what would not be found behind a gap (Knuth, TAOCP 6.4, algorithm R).
void Rows::Erase(Number row) {
  const size_t mask = buckets_.size() - 1;
  size_t gap = FindBucket(row, MixId(head(row).id));
  for (size_t next = (gap + 1) & mask; tags_[next] != 0; next = (next + 1) & mask) {
    const size_t home = BucketOf(MixId(head(buckets_[next]).id));
    if (((next - home) & mask) < ((next - gap) & mask)) continue;
    buckets_[gap] = buckets_[next];
    tags_[gap] = tags_[next];
    gap = next;
  }
  tags_[gap] = 0;
  used_[row / 64] &= ~(uint64_t{1} << row % 64);
  free_.push_back(row);
  --size_;
}

void Rows::Grow() {
  const size_t buckets = 2 * buckets_.size();
  PageArray<Number>(buckets).swap(&buckets_);
  PageArray<uint8_t>(buckets).swap(&tags_);
  for (Number row = 0; row < end_; ++row) {
    if (in_use(row)) Place(row, MixId(head(row).id));
  }
}

size_t Rows::bytes() const {
  return slabs_.size() * (row_bytes_ << slab_bits_) + memory_.capacity() * sizeof(memory_[0]) +
         slabs_.capacity() * sizeof(slabs_[0]) + buckets_.size() * sizeof(Number) + tags_.size() +
         used_.capacity() * sizeof(uint64_t) + free_.capacity() * sizeof(Number);
}

void Rows::PrefetchIndex(uint64_t hash) const {
  const size_t bucket = BucketOf(hash);
  __builtin_prefetch(&tags_[bucket]);
  __builtin_prefetch(&buckets_[bucket]);
}

void Rows::PrefetchRow(uint64_t hash, size_t content_bytes) const {
  const size_t bucket = BucketOf(hash);
  if (tags_[bucket] != TagOf(hash)) return;
  const char* const row = at(buckets_[bucket]);
  for (size_t offset = 0; offset < sizeof(Head) + content_bytes; offset += 64)
    __builtin_prefetch(row + offset);
}

}  // namespace tfdist::ps
